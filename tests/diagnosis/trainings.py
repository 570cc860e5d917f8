"""Trainings whose waits are planted by sleeping: `python trainings.py NAME`."""

import queue
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

BATCH = 4
MODEL = nn.Linear(12, 5)
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=1e-3)
ONES = torch.ones(BATCH, 3, 2, 2), torch.ones(BATCH, dtype=torch.long)  # a batch that is kept


class Images(Dataset):
    """Images that take some time each to load."""

    def __init__(self, batches, batch_s):
        self.images, self.image_s = batches * BATCH, batch_s / BATCH

    def __len__(self):
        return self.images

    def __getitem__(self, index):
        time.sleep(self.image_s)
        return torch.ones(3, 2, 2), index % 5


def loader(batches, batch_s, workers=0, kind=DataLoader, **options):
    return kind(Images(batches, batch_s), batch_size=BATCH, num_workers=workers, **options)


def step(batch, step_s):
    images, labels = batch
    nn.functional.cross_entropy(MODEL(images.flatten(1)), labels).backward()
    OPTIMIZER.step()
    OPTIMIZER.zero_grad()
    time.sleep(step_s)


def train(batches, step_s):
    for batch in batches:
        step(batch, step_s)


def evaluate(batches, step_s=0.0):
    with torch.no_grad():
        for images, _ in batches:
            MODEL(images.flatten(1))
            time.sleep(step_s)


def background_generator():
    from prefetch_generator import BackgroundGenerator

    class Ahead(DataLoader):
        def __iter__(self):
            return BackgroundGenerator(super().__iter__())

    # Loading takes 30 ms, a step 20 ms: it waits 10 ms of 30.
    for _ in range(2):
        train(loader(40, 0.030, kind=Ahead), 0.020)


def generator_of_a_loader():
    from prefetch_generator import BackgroundGenerator

    train(BackgroundGenerator(loader(80, 0.030)), 0.020)


def executor():
    batches = iter(loader(80, 0.030))
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, batches, None)
        while (batch := following.result()) is not None:
            following = pool.submit(next, batches, None)
            step(batch, 0.020)


def evaluation_between_epochs():
    for _ in range(3):
        train(loader(20, 0.020), 0.010)
        time.sleep(1.0)


def slow_validation():
    for _ in range(3):
        train(loader(20, 0.002), 0.040)
        evaluate(loader(20, 0.030))


def unseen_loader():
    for _ in range(3):
        for _ in range(30):
            step(ONES, 0.010)
        evaluate(loader(20, 0.020))


def rebatching():
    def rebatched(batches):
        for batch in batches:
            time.sleep(0.030)  # such as images cut into patches
            yield batch

    train(rebatched(loader(100, 0.010)), 0.010)


class Endless(DataLoader):
    """One iterator for all epochs, as ultralytics and timm's MultiEpochsDataLoader."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        own = self.batch_sampler

        class Again:
            batch_size = own.batch_size

            def __iter__(self):
                while True:
                    yield from iter(own)

            def __len__(self):
                return len(own)

        object.__setattr__(self, "batch_sampler", Again())
        self.iterator = self.begin()

    def begin(self):
        return super().__iter__()

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


class Kept(Endless):
    """The same, as ultralytics makes it since 8.4."""

    def begin(self):
        return self._get_iterator()


def kept_iterator():
    endless_loader(Kept)


def endless_loader(kind=Endless):
    batches = loader(20, 0.020, kind=kind)
    for _ in range(4):
        train(batches, 0.010)
        time.sleep(0.5)


def two_loaders():
    # 10 and 20 ms of loading, 30 ms of computing: it waits half of the time.
    for first, _ in zip(loader(60, 0.010), loader(60, 0.020), strict=True):
        step(first, 0.030)


def lists_of_dicts():
    class Dicts(Images):
        def __getitem__(self, index):
            time.sleep(self.image_s)
            return {"image": torch.ones(3, 2, 2 + index % 2), "label": 1}

    batches = DataLoader(Dicts(20, 0.020), batch_size=1, collate_fn=lambda samples: samples[0])
    images = torch.ones(1, 3, 2, 2), torch.ones(1, dtype=torch.long)
    for _ in batches:
        step(images, 0.005)


def compiling():
    # Two workers take 60 ms for a batch each, so one comes every 30 ms; the step takes 10 ms.
    for number, batch in enumerate(loader(100, 0.060, workers=2, prefetch_factor=8)):
        step(batch, 2.0 if number == 0 else 0.010)


def in_a_thread():
    thread = threading.Thread(target=train, args=(loader(100, 0.020), 0.020))
    thread.start()
    thread.join()


# --- mechanisms


def accumulation():
    for number, (images, labels) in enumerate(loader(120, 0.005)):
        nn.functional.cross_entropy(MODEL(images.flatten(1)), labels).backward()
        if number % 4 == 3:
            OPTIMIZER.step()
            OPTIMIZER.zero_grad()
        time.sleep(0.005)


def one_ahead():
    class Shard(DataLoader):  # as accelerate's
        def __iter__(self):
            batches = super().__iter__()
            batch = next(batches)
            for following in batches:
                yield batch
                batch = following
            yield batch

    train(loader(100, 0.010, kind=Shard), 0.010)


def own_prefetcher():
    class Prefetcher:  # as NVIDIA apex's
        def __init__(self, batches):
            self.batches = iter(batches)
            self.preload()

        def preload(self):
            self.following = next(self.batches, None)

        def next(self):
            batch = self.following
            self.preload()
            return batch

    prefetcher = Prefetcher(loader(100, 0.010))
    while (batch := prefetcher.next()) is not None:
        step(batch, 0.010)


def own_optimizer():
    for images, labels in loader(100, 0.010):  # as fastai's
        nn.functional.cross_entropy(MODEL(images.flatten(1)), labels).backward()
        with torch.no_grad():
            for weights in MODEL.parameters():
                weights -= 1e-3 * weights.grad
        MODEL.zero_grad()
        time.sleep(0.010)


def inference():
    evaluate(loader(100, 0.010), 0.010)


def every_fourth():
    train(loader(160, 0.080, workers=4), 0.002)


def hidden_thread():
    # Batches go through a list that no lock guards: nobody can tell how they arrive.
    held = []

    def fill():
        held.extend(loader(40, 0.010))

    thread = threading.Thread(target=fill)
    thread.start()
    taken = 0
    while taken < 40:
        if len(held) > taken:
            step(held[taken], 0.005)
            taken += 1
        time.sleep(0.001)


def put_all(batches, channel):
    for batch in batches:
        channel.put(batch)
    channel.put(None)


def in_a_queue(batches, size):
    """Have a thread put batches into a queue, and None after the last one."""
    channel = queue.Queue(size)
    threading.Thread(target=put_all, args=(batches, channel)).start()
    return channel


def queues_in_a_row():
    first = in_a_queue(loader(120, 0.020), 2)
    changed = ((images + 1, labels) for images, labels in iter(first.get, None))
    train(iter(in_a_queue(changed, 2).get, None), 0.010)


def polled_queue():
    held = in_a_queue(loader(80, 0.030), 1)

    def batches():  # as MONAI's ThreadBuffer
        while True:
            try:
                batch = held.get(timeout=0.005)
            except queue.Empty:
                continue
            if batch is None:
                return
            yield batch

    train(batches(), 0.020)


def own_process():
    context = torch.multiprocessing.get_context("fork")
    held = context.Queue(2)

    def load():
        for number in range(40):
            time.sleep(0.010)
            yield number

    context.Process(target=lambda: put_all(load(), held)).start()
    while held.get() is not None:
        step(ONES, 0.005)


def named_loader():
    import labkit

    def batches():  # as DALI's
        for _ in range(80):
            time.sleep(0.020)
            yield ONES

    train(labkit.watch(batches()), 0.010)


# --- without end, to be looked at from outside


def spin(s):
    until_s = time.perf_counter() + s
    while time.perf_counter() < until_s:
        pass


class Spun(IterableDataset):
    """Batches that a core computes, without end."""

    def __init__(self, batch_s):
        self.image_s = batch_s / BATCH

    def __iter__(self):
        while True:
            spin(self.image_s)
            yield torch.ones(3, 2, 2), 1


def run_on(batch_s, step_s, workers):
    torch.set_num_threads(1)
    for number, batch in enumerate(DataLoader(Spun(batch_s), BATCH, num_workers=workers)):
        step(batch, 0)
        spin(step_s)
        if number == 9:
            print("10 steps", flush=True)


def many_busy_workers():
    run_on(0.040, 0.002, 2)


def busy_step():
    run_on(0.001, 0.050, 1)


def endless_alone():
    run_on(0.010, 0.010, 0)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
