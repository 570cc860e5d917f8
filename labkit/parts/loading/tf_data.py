"""tf.data: TensorFlow's input pipeline with the documents' stages, each of which can be left out.

    positions ─▶ map: read, decode, resize, finish ─▶ batch ─▶ prefetch ─▶ torch tensors
    shards    ─▶ parallel reads ─▶ the epoch's records ─▶ the same

Batches are handed to torch without a copy.  The order comes from the source; only the documents'
own snippet shuffles.

Source: [001] 2.1 a and 4.2; tensorflow.org/guide/data_performance.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.contracts import open_library
from labkit.parts.loading.source import RIVALS, Outside, Source, pin, threads_of
from labkit.settings import Settings

if TYPE_CHECKING:
    import torch


class TfDataLoader:
    """Epochs of a tf.data pipeline as torch tensors.

    Args:
        dataset: gives whole batches, as dicts of tensors.
        start: called before each epoch, to bring in its order.
    """

    def __init__(self, dataset: Any, start: Callable[[], None]) -> None:
        self._dataset, self._start = dataset, start

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """Start an epoch; its threads end with the iterator."""
        self._start()
        return map(_to_torch, iter(self._dataset))


def load_with_tf_data(
    source: Source, settings: Settings, *, parallel_map: bool = True, prefetch: bool = True
) -> Iterable[dict[str, torch.Tensor]]:
    """Load files with map, batch and prefetch, in the source's order.

    Args:
        source: the images.
        settings: `num_workers` threads, AUTOTUNE within them.
        parallel_map: with num_parallel_calls=AUTOTUNE; else one call at a time.
        prefetch: with prefetch(AUTOTUNE) at the end.

    Raises:
        Skip: TensorFlow is missing or broken, or the work is none that it can do.
    """
    images, tf = source.outside(), _open()
    one, start_crops = _one_image(tf, source, images)
    whole = len(images.ids) // settings.batch_size * settings.batch_size
    with tf.device("CPU"):
        files = tf.constant(images.files)
        # Held in a variable: a pipeline of its own for every epoch would be traced every time.
        order = tf.Variable(np.zeros(whole, np.int64), trainable=False)

    def at(number: object) -> dict[str, Any]:
        i = tf.gather(order, number)
        return one(tf.io.read_file(files[i]), i)

    def start() -> None:
        order.assign(images.positions(source, settings.batch_size).ravel())
        start_crops()

    calls = tf.data.AUTOTUNE if parallel_map else None
    dataset = tf.data.Dataset.range(whole).map(at, num_parallel_calls=calls)
    dataset = dataset.batch(settings.batch_size, drop_remainder=True)
    return _finish(tf, dataset, settings, prefetch=prefetch, start=start)


def load_as_published(source: Source, settings: Settings) -> Iterable[dict[str, torch.Tensor]]:
    """Load files with the documents' snippet: shuffle(5000), batch, map, prefetch.

    The same images in every epoch, in tf.data's own order: another one than the source's.  The map
    comes after the batch, so each call makes a whole one.

    Raises:
        Skip: as `load_with_tf_data`.
    """
    images, tf = source.outside(), _open()
    one, start = _one_image(tf, source, images)
    of_images = tf.uint8 if images.scale_rgb is None else tf.float32
    signature = {images.entry: of_images, "label": tf.int64, "sample_id": tf.int64}

    def every(files: object, places: object) -> dict[str, Any]:
        return tf.map_fn(
            lambda at: one(tf.io.read_file(at[0]), at[1]),
            (files, places),
            fn_output_signature=signature,
        )

    places = np.arange(len(images.ids))
    dataset = tf.data.Dataset.from_tensor_slices((list(images.files), places))
    dataset = dataset.shuffle(5000, seed=settings.seed)  # as in the documents' snippet
    dataset = dataset.batch(settings.batch_size, drop_remainder=True)
    dataset = dataset.map(every, num_parallel_calls=tf.data.AUTOTUNE)
    return _finish(tf, dataset, settings, start=start)


def load_tfrecords(
    source: Source, settings: Settings, *, parallel_reads: bool = True
) -> Iterable[dict[str, torch.Tensor]]:
    """Load TFRecord shards, in the order in which their records lie; nothing is shuffled.

    Args:
        source: the images, packed as TFRecord; records of others are read and passed over.
        settings: as in `load_with_tf_data`.
        parallel_reads: num_parallel_reads is the number of threads; else one shard after the other.

    Raises:
        Skip: as `load_with_tf_data`.
    """
    images, tf = source.outside(), _open()
    one, start = _one_image(tf, source, images)
    names = tf.constant([os.fsencode(name) for name in images.names])
    places = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(names, tf.range(len(images.ids), dtype=tf.int64)), -1
    )
    text = tf.io.FixedLenFeature([], tf.string)

    def parse(record: object) -> tuple[object, object]:
        parsed = tf.io.parse_single_example(record, {"image/encoded": text, "image/filename": text})
        return parsed["image/encoded"], places.lookup(parsed["image/filename"])

    reads = threads_of(settings) if parallel_reads else None
    dataset = tf.data.TFRecordDataset(list(images.files), num_parallel_reads=reads).map(parse)
    # The last images of the epoch may not be the last records: what comes then is not read.
    dataset = dataset.filter(lambda jpeg, i: i >= 0).take(len(images.ids))
    dataset = dataset.map(one, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.batch(settings.batch_size, drop_remainder=True)
    return _finish(tf, dataset, settings, start=start)


def _open() -> ModuleType:
    """Import TensorFlow, silent and without a GPU: the device is torch's."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # only read while it is imported
    tf = open_library("tensorflow", RIVALS)
    tf.get_logger().setLevel("ERROR")
    with contextlib.suppress(RuntimeError):  # TensorFlow is in use already
        tf.config.set_visible_devices([], "GPU")
    return tf


def _one_image(
    tf: ModuleType, source: Source, images: Outside
) -> tuple[Callable[[Any, Any], dict[str, Any]], Callable[[], None]]:
    """Return what makes a sample of a JPEG and its place, and what starts an epoch of samples."""
    side = (images.input_px, images.input_px)
    # The fast inverse DCT is tf.data's default and gives other pixels than every decoder here.
    how = {"channels": 3, "dct_method": "INTEGER_ACCURATE"}
    with tf.device("CPU"):
        labels, ids = tf.constant(images.labels), tf.constant(images.ids)
        crops = tf.Variable(np.zeros((len(images.ids), 5), np.int32), trainable=False)

    def start() -> None:
        if images.draw_crops is not None:
            crops.assign(images.crops(source).astype(np.int32))

    def one(jpeg: Any, i: Any) -> dict[str, Any]:
        if images.draw_crops is None:
            pixels = tf.io.decode_jpeg(jpeg, **how)
        else:
            left, top, wide, high, is_flipped = tf.unstack(tf.gather(crops, i))
            window = tf.stack([top, left, high, wide])
            pixels = tf.io.decode_and_crop_jpeg(jpeg, window, **how)
        # A crop that shrinks is averaged, as torchvision does and OpenCV below half of its size.
        averages = images.draw_crops is not None
        image = tf.image.resize(pixels, side, method="bilinear", antialias=averages)
        if images.draw_crops is not None:
            image = tf.cond(is_flipped > 0, lambda: tf.reverse(image, [1]), lambda: image)
        if images.scale_rgb is None:
            image = tf.cast(tf.round(image), tf.uint8)
            image.set_shape((*side, 3))
        else:
            scale, shift = (
                np.array(each, np.float32) for each in (images.scale_rgb, images.shift_rgb)
            )
            image = tf.transpose(image * scale + shift, (2, 0, 1))
            image.set_shape((3, *side))
        return {images.entry: image, "label": labels[i], "sample_id": ids[i]}

    return one, start


def _finish(
    tf: ModuleType,
    dataset: Any,
    settings: Settings,
    *,
    prefetch: bool = True,
    start: Callable[[], None],
) -> Iterable[dict[str, torch.Tensor]]:
    """Limit AUTOTUNE to as many threads as the other loaders have workers; make it a loader."""
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads_of(settings)
    options.threading.max_intra_op_parallelism = 1
    options.autotune.cpu_budget = threads_of(settings)
    options.deterministic = True
    if prefetch:
        dataset = dataset.prefetch(tf.data.AUTOTUNE)
    return pin(TfDataLoader(dataset.with_options(options), start), settings, threaded=prefetch)


def _to_torch(batch: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return torch tensors that share the batch's memory, which TensorFlow does not use again."""
    import tensorflow
    from torch.utils.dlpack import from_dlpack

    to_dlpack = tensorflow.experimental.dlpack.to_dlpack
    return {name: from_dlpack(to_dlpack(tensor)) for name, tensor in batch.items()}
