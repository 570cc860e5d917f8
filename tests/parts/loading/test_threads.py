"""ThreadLoader against torch's DataLoader, and what threads can do wrong."""

import collections
import gc
import os
import subprocess
import sys
import threading
import time
import traceback
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from jpegs import installed
from small import completed
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset

import labkit as lab
from labkit import ThreadLoader
from labkit.parts.preprocessing import PREPROCESSORS, Preprocessor
from labkit.parts.preprocessing.classification import classification
from labkit.pipeline import open_loader
from labkit.resolve import resolve
from labkit.runs.check_equal_work import compare_work
from tests.processes import PATIENCE_S

Pair = collections.namedtuple("Pair", "image label")
THREADS = pytest.mark.parametrize("threads", [0, 4])


class Numbers(Dataset):
    """Samples that say which they are; some take longer, so that threads overtake each other."""

    def __init__(self, count=23, make=lambda i: {"x": np.full((2, 3), i, np.int32)}):
        self.count, self.make = count, make

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        time.sleep(0.002 if i % 5 == 0 else 0)
        return self.make(i)


def same(a, b):
    """Whether two batches are the same in structure, dtype and value."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        if a and isinstance(a[0], str):  # torch's list of texts is sometimes a tuple
            return list(a) == list(b)
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return a == b


def assert_same(loader, reference):
    batches, wanted = list(loader), list(reference)
    assert len(batches) == len(wanted) > 0
    assert all(map(same, batches, wanted))


def assert_threads_end():
    for thread in threading.enumerate():
        if thread.name.startswith("ThreadLoader"):
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


class TestTheSameAsTorch:
    @THREADS
    @pytest.mark.parametrize(
        "how",
        [
            {"batch_size": 4, "drop_last": True},
            {"batch_size": 5, "shuffle": True},
            {"sampler": [3, 1, 2, 2, 9], "batch_size": 2},
            {"batch_sampler": [[4, 0], [7], [1, 2, 3]]},
            {"batch_size": 4, "collate_fn": lambda samples: [int(s["x"][0, 0]) for s in samples]},
        ],
        ids=" ".join,
    )
    def test_batches_order_and_length(self, how, threads):
        ours = ThreadLoader(Numbers(), num_threads=threads, **how)
        theirs = DataLoader(Numbers(), **how)
        assert len(ours) == len(theirs)
        for epoch in range(2):
            torch.manual_seed(epoch)
            batches = list(ours)
            torch.manual_seed(epoch)
            assert all(map(same, batches, theirs))
            assert len(batches) == len(ours)

    @THREADS
    @pytest.mark.parametrize(
        "make",
        [
            lambda i: np.full((2, 2), i, np.float64),
            lambda i: torch.full((3,), i),
            lambda i: (torch.ones(2) * i, i),
            lambda i: [np.float32(i), i / 2, i % 2 == 0, f"image {i}"],
            lambda i: Pair(np.zeros((2, 3, 3), np.uint8)[:, ::-1] + np.uint8(i), i),
            lambda i: {"a": {"b": (i, [i])}, "c": torch.ones(2, dtype=torch.bfloat16) * i},
            lambda i: collections.OrderedDict(z=i, a=np.array(i, np.int64)),
            lambda i: {"image": torch.ones(2, requires_grad=True) * i, "empty": np.zeros((0, 4))},
        ],
    )
    def test_samples_of_every_structure(self, make, threads):
        data = Numbers(7, make)
        assert_same(ThreadLoader(data, 3, num_threads=threads), DataLoader(data, 3))


class TestLabkitsLoader:
    @pytest.mark.parametrize("preprocessor", installed(PREPROCESSORS))
    def test_every_preprocessor_does_equal_work(self, photos, preprocessor):
        base = completed(data=str(photos), preprocessor=preprocessor, device="cpu")
        torchs, threads = (
            open_loader(resolve(replace(base, loader=loader, num_workers=workers)))[1]
            for loader, workers in (("torch", 0), ("threads", 3))
        )
        assert_same(threads, torchs)

    def test_a_transform_that_threads_spoil_is_found_out(self, photos, monkeypatch):
        shared, both = np.empty((480, 640, 3), np.uint8), threading.Barrier(2)

        def in_one_buffer(sample, input_px):
            pixels = shared[: sample.image_rgb.shape[0], : sample.image_rgb.shape[1]]
            pixels[...] = sample.image_rgb[:480, :640]
            if threading.current_thread() is not threading.main_thread():
                both.wait(PATIENCE_S)  # now the other thread's image lies there, too
            return classification(replace(sample, image_rgb=pixels), input_px)

        careless = Preprocessor(in_one_buffer, batch="classifier")
        monkeypatch.setitem(lab.PREPROCESSORS, "careless", careless)
        how = {"preprocessor": "careless", "batch_size": 8, "num_workers": 2, "device": "cpu"}
        base = completed(data=str(photos), **how)
        verdicts = compare_work(
            {"torch": base, "threads": replace(base, loader="threads")}, "torch"
        )
        assert verdicts["torch"] == ("ok", "")
        status, reason = verdicts["threads"]
        assert status == "failed"
        assert "not the same work as torch: image must differ" in reason


class TestMemory:
    def test_no_batch_that_is_kept_is_ever_overwritten(self):
        loader = ThreadLoader(Numbers(40), 4, num_threads=3, prefetch_batches=2)
        kept = [batch["x"] for _ in range(3) for batch in loader]
        assert [int(i) for x in kept for i in x[:, 0, 0]] == list(range(40)) * 3

    @pytest.mark.parametrize(
        "part", [lambda x: x[1:2], lambda x: x.numpy(), lambda x: x.view(-1), lambda x: x.detach()]
    )
    def test_a_view_of_a_batch_keeps_it_too(self, part):
        iterator = iter(ThreadLoader(Numbers(40), 4, num_threads=2, prefetch_batches=1))
        kept = part(next(iterator)["x"])
        before = np.asarray(kept).copy()
        for _ in iterator:
            pass
        np.testing.assert_array_equal(np.asarray(kept), before)

    def test_the_usual_loop_uses_the_same_memory_again(self, monkeypatch):
        loader = ThreadLoader(Numbers(80), 4, num_threads=2, prefetch_batches=2)
        made, empty = [], np.empty
        # Counted, as an allocator, too, gives the same memory again.
        monkeypatch.setattr(np, "empty", lambda *how: made.append(how) or empty(*how))
        assert sum(1 for _ in range(2) for batch in loader) == 40
        # Ahead; in the loop and the one before it; what a thread has just filled and still holds.
        # Of these six, an epoch's end keeps four.
        assert len(made) <= 2 + 2 + 2 + 2

    def test_batches_that_never_have_the_same_shape_twice_do_not_pile_up(self):
        data = Numbers(200, lambda i: np.zeros(100_000 + i, np.uint8))
        loader = ThreadLoader(data, num_threads=2)
        tracemalloc.start()
        try:
            assert sum(1 for _ in loader) == 200
            held_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held_bytes < 50 * 100_000

    def test_no_more_batches_are_made_ahead_than_asked_for(self):
        made, enough = [], threading.Event()

        def make(i):
            made.append(i)
            if len(made) == 12:
                enough.set()
            return i

        iterator = iter(ThreadLoader(Numbers(100, make), 4, num_threads=2, prefetch_batches=2))
        next(iterator)
        assert enough.wait(PATIENCE_S)
        assert sorted(made) == list(range(12))  # the batch in the loop and two more
        iterator.close()


class TestErrors:
    def broken(self, *bad, error=KeyError):
        def make(i):
            if i in bad:
                raise error(f"disk gone at {i}")
            return np.array(i)

        return Numbers(40, make)

    @THREADS
    def test_the_first_one_is_raised_where_torch_would(self, threads):
        for _ in range(5):
            delivered = []
            with pytest.raises(KeyError, match="disk gone at 17") as raised:
                for batch in ThreadLoader(self.broken(18, 17, 35), 4, num_threads=threads):
                    delivered += batch.tolist()
            assert delivered == list(range(16))
            assert raised.value.__notes__ == ["ThreadLoader was making sample 17"]
            frames = traceback.extract_tb(raised.value.__traceback__)
            assert frames[-1].name == "make"
        assert_threads_end()

    def test_after_an_error_no_further_sample_of_the_batch_is_begun(self):
        made, failing = [], threading.Event()

        def make(i):
            made.append(i)
            if i == 1:  # in the other thread, which is still busy when the first sample fails
                failing.wait(PATIENCE_S)
                time.sleep(0.5)  # until the loader has noted it
                return i
            failing.set()
            raise KeyError("disk gone")

        with pytest.raises(KeyError, match="disk gone"):
            list(ThreadLoader(Numbers(40, make), 40, num_threads=2))
        assert len(made) <= 2

    @THREADS
    def test_a_stop_iteration_in_a_sample_does_not_end_the_epoch_in_silence(self, threads):
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            list(ThreadLoader(self.broken(9, error=StopIteration), 4, num_threads=threads))

    @pytest.mark.parametrize(
        "odd", [{"x": np.zeros((3, 3), np.uint8)}, {"x": np.zeros((2, 2))}, {"x": "text"}, {"y": 1}]
    )
    def test_a_sample_unlike_the_others_is_named(self, odd):
        data = Numbers(8, lambda i: odd if i == 6 else {"x": np.zeros((2, 2), np.uint8)})
        message = r"6 must have {'x': \(\(2, 2\), dtype\('uint8'\)\)}, got {.*; make them alike or"
        with pytest.raises(ValueError, match=message):
            list(ThreadLoader(data, 8, num_threads=1))

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"num_threads": -1}, "num_threads must be at least 0, got -1"),
            ({"prefetch_batches": 0}, "prefetch_batches must be at least 1, got 0"),
            ({"sampler": [1], "shuffle": True}, "sampler option is mutually exclusive"),
        ],
        ids=str,
    )
    def test_arguments_that_cannot_work(self, wrong, message):
        with pytest.raises(ValueError, match=message):
            ThreadLoader(Numbers(), **wrong)

    def test_trainings_find_what_a_dataloader_has(self):
        sampler = DistributedSampler(range(8), num_replicas=2, rank=0)
        loader = ThreadLoader(Numbers(8), 2, sampler=sampler, drop_last=True)
        assert (loader.sampler, loader.batch_size, loader.drop_last) == (sampler, 2, True)

    def test_few_batches_are_made_ahead_whatever_makes_the_batches(self):
        def ahead(**how):
            return ThreadLoader(Numbers(64), num_threads=8, **how).prefetch_batches

        in_batches = BatchSampler(range(64), 16, drop_last=False)
        assert ahead(batch_size=16) == ahead(batch_sampler=in_batches) == 2
        assert ahead(batch_sampler=[[1, 2], [3, 4]]) == 2  # of unknown sizes

    def test_a_dataset_without_keys_is_refused(self):
        class Stream(IterableDataset):
            def __iter__(self):
                return iter(range(3))

        with pytest.raises(ValueError, match="dataset must give samples by key"):
            ThreadLoader(Stream())


class TestEnding:
    @pytest.mark.parametrize("how", ["never started", "closed", "dropped", "in a circle"])
    def test_every_way_to_leave_an_epoch_ends_its_threads(self, how):
        iterator = iter(ThreadLoader(Numbers(1000), 4, num_threads=2))
        if how != "never started":
            next(iterator)
        if how == "closed":
            iterator.close()
            assert list(iterator) == []
        if how == "in a circle":
            circle = [iterator]
            circle.append(circle)
            del circle
        del iterator
        gc.collect()
        assert_threads_end()

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_fork_is_refused_or_harmless_and_both_programs_end_with_iterators_left(self):
        program = """
import os, sys, warnings, labkit as lab
warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads at all
loader = lab.ThreadLoader(list(range(1000)), 4, num_threads=2)
iterator = iter(loader)
next(iterator)
child = os.fork()
if child == 0:
    try:
        next(iterator)
    except RuntimeError as error:
        print(error)
    print([batch.tolist() for batch in loader][-1])  # an epoch of its own
    sys.exit()
print(os.waitpid(child, 0)[1], file=sys.stderr)
print(sum(1 for _ in iterator))
left = iter(loader)
next(left)
"""
        shown = subprocess.run(
            [sys.executable, "-u", "-c", program],
            capture_output=True, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
        assert (shown.returncode, shown.stderr) == (0, "0\n")
        assert shown.stdout == (
            "a ThreadLoader's iterator must be used in the process that made it, got one inherited "
            "by fork, without its threads; iterate over the loader again\n"
            "[996, 997, 998, 999]\n"
            "249\n"
        )


@pytest.mark.needs_cuda
def test_pinned_memory_is_not_written_to_before_it_is_copied():
    """The copies wait on a side stream that is busy, while the loop runs ahead of them."""
    data = Numbers(64, lambda i: np.full((512, 512), i, np.float32))
    loader = ThreadLoader(data, 4, num_threads=4, pin_memory=True)
    stream, copies = torch.cuda.Stream(), []
    for batch in loader:
        assert batch.is_pinned()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            copies.append(batch.to("cuda", non_blocking=True))
    torch.cuda.synchronize()
    assert [int(i) for copy in copies for i in copy[:, -1, -1]] == list(range(64))
