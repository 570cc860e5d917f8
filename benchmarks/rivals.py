"""The rows of `benchmarks.loaders` that are other libraries: the same files, size and uint8 output.

Each entry of RIVALS takes (images, batch size, threads, folder for what it has to store) and gives
what is iterated once per timed run; its batches are dicts of image and label.  DALI and tf.data
decode and resize by themselves, within one grey level of OpenCV; SPDL and WebDataset call what the
others call.  Main trap: they have threads, and a DataLoader that forks beside them may hang; so
they are opened after its workers are started.
"""

import io
import os
import tarfile

import numpy as np
import torch

from labkit.parts.loading.source import open_library

DALI, TF_DATA, SPDL, WEB_DATASET = "DALI on the CPU", "tf.data", "SPDL", "WebDataset"
PREFETCHED = 2  # batches, where a library wants a number
MOST_APART = 1  # grey levels: libraries round a resized one up or down


class Once:
    """What is iterated by calling something."""

    def __init__(self, start) -> None:
        self.start = start

    def __iter__(self):
        return self.start()


def as_batch(image, label) -> dict[str, torch.Tensor]:
    return {"image": torch.as_tensor(image), "label": torch.as_tensor(label)}


def dali_cpu(images, batch_size: int, threads: int, folder) -> Once:
    open_library("nvidia.dali.fn", "DALI", ())
    dali = open_library("nvidia.dali", "DALI", ("Pipeline", "fn.io.file.read"))
    fn, types = dali.fn, dali.types
    paths = [np.frombuffer(path.encode(), np.uint8) for path in images.paths]

    def numbers():
        for start in range(0, len(images), batch_size):
            labels = np.arange(start, min(start + batch_size, len(images)))
            yield [paths[i % len(paths)] for i in labels], labels

    pipeline = dali.Pipeline(
        batch_size, threads, device_id=None, prefetch_queue_depth=PREFETCHED, exec_dynamic=True
    )
    with pipeline:
        path, label = fn.external_source(
            source=numbers, num_outputs=2, cycle="raise", dtype=[types.UINT8, types.INT64],
            ndim=[1, 0],
        )  # fmt: skip
        image = fn.decoders.image(fn.io.file.read(path), device="cpu", jpeg_fancy_upsampling=True)
        size = list(images.size)
        small = fn.resize(image, size=size, interp_type=types.INTERP_LINEAR, antialias=False)
        pipeline.set_outputs(small, label)
    pipeline.build()

    def epoch():
        pipeline.reset()
        while True:
            try:
                outputs = pipeline.run()
            except StopIteration:
                return
            yield as_batch(*(torch.from_dlpack(output.as_tensor()) for output in outputs))

    return Once(epoch)


def tf_data(images, batch_size: int, threads: int, folder) -> Once:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    tf = open_library("tensorflow", "TensorFlow", ("data.Dataset", "io.decode_jpeg"))
    tf.config.set_visible_devices([], "GPU")
    paths = tf.constant(images.paths)

    def sample(i):
        jpeg = tf.io.read_file(paths[i % len(images.paths)])
        pixels = tf.io.decode_jpeg(jpeg, channels=3, dct_method="INTEGER_ACCURATE")
        small = tf.image.resize(pixels, images.size, antialias=False)
        return tf.cast(tf.round(small), tf.uint8), i

    options = tf.data.Options()
    options.threading.private_threadpool_size = options.autotune.cpu_budget = threads
    options.threading.max_intra_op_parallelism = 1
    dataset = tf.data.Dataset.range(len(images)).map(sample, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.batch(batch_size).prefetch(tf.data.AUTOTUNE).with_options(options)
    to_dlpack = tf.experimental.dlpack.to_dlpack

    def epoch():
        for batch in dataset:
            yield as_batch(*(torch.utils.dlpack.from_dlpack(to_dlpack(part)) for part in batch))

    return Once(epoch)


def spdl(images, batch_size: int, threads: int, folder) -> Once:
    pipeline = open_library("spdl.pipeline", "SPDL", ("PipelineBuilder",))

    def collate(samples):
        return as_batch(
            np.stack([sample["image"] for sample in samples]),
            [sample["label"] for sample in samples],
        )

    def epoch():
        builder = pipeline.PipelineBuilder().add_source(range(len(images)))
        builder = builder.pipe(images.__getitem__, concurrency=threads, output_order="input")
        builder = builder.aggregate(batch_size).pipe(collate).add_sink(PREFETCHED)
        built = builder.build(num_threads=threads)
        with built.auto_stop():
            yield from built.get_iterator()

    return Once(epoch)


def web_dataset(images, batch_size: int, threads: int, folder) -> torch.utils.data.DataLoader:
    wds = open_library("webdataset", "WebDataset", ("WebDataset",))
    shards = [str(folder / f"{number}.tar") for number in range(threads)]
    for number, shard in enumerate(shards):
        with tarfile.open(shard, "w") as tar:
            for i in range(number, len(images), threads):
                with open(images.paths[i % len(images.paths)], "rb") as file:  # noqa: PTH123
                    jpeg = file.read()
                member = tarfile.TarInfo(f"{i:08}.jpg")
                member.size = len(jpeg)
                tar.addfile(member, io.BytesIO(jpeg))

    def sample(found):
        return {"image": images.from_jpeg(found["jpg"]), "label": int(found["__key__"])}

    dataset = wds.WebDataset(shards, shardshuffle=False).map(sample)
    return torch.utils.data.DataLoader(
        dataset, batch_size, num_workers=threads, persistent_workers=True
    )


# First the one that forks.
RIVALS = {WEB_DATASET: web_dataset, SPDL: spdl, DALI: dali_cpu, TF_DATA: tf_data}


def check_same_images(rival, reference: dict[int, torch.Tensor]) -> None:
    """Refuse to time a rival that does not deliver every image once, the same within rounding."""
    seen = set()
    for batch in rival:
        for image, label in zip(batch["image"], batch["label"].tolist()):
            apart = (image.int() - reference[label].int()).abs().max()
            if image.dtype != torch.uint8 or apart > MOST_APART:
                raise ValueError(
                    f"image {label} must be within {MOST_APART} level, got {int(apart)}"
                )
            seen.add(label)
    if len(seen) != len(reference):
        raise ValueError(f"it must deliver {len(reference)} images, got {len(seen)}")
