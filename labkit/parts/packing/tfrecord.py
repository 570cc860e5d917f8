"""TFRecord: TensorFlow's file of protocol buffers, one `Example` per image.

    length (8) ─ its CRC (4) ─ Example: image/encoded, image/object/bbox/… ─ its CRC (4)

Written and read with protobuf and crc32c, which the `tfrecord` package needs and brings, so
TensorFlow is not needed, and reads the same files.  The `tfrecord` package itself is not imported:
it registers its messages under TensorFlow's names, and then TensorFlow cannot be imported in the
same process, nor the other way round.  Main trap: the coordinates are pixels, as everywhere in
labkit; programs that know the feature names from TensorFlow's object detection expect shares of
the image's sides.

Source: tensorflow.org/tutorials/load_data/tfrecord; tensorflow/core/example/example.proto and
feature.proto.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from labkit.contracts import Annotation
from labkit.parts.packing.index import PIXELS, Index
from labkit.parts.packing.shards import Add, Format, OpenFile

LENGTH, CRC = struct.Struct("<Q"), struct.Struct("<I")
CRC_BYTES, CRC_MASK = CRC.size, 0xA282EAD8
START_BYTES = LENGTH.size + CRC_BYTES
FORMATS = {PIXELS: b"raw", "sample": b"safetensors"}  # else JPEG
SIDES = ("xmin", "ymin", "xmax", "ymax")


@cache
def example_class() -> type:
    """Make the class of `Example`, known to nobody else in this process."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name="example.proto", package="tensorflow", syntax="proto3"
    )
    kinds = descriptor_pb2.FieldDescriptorProto

    def add(message: object, name: str, number: int, kind: str, of: str = "", **how: int) -> None:
        label = kinds.LABEL_REPEATED if how.pop("repeated", 0) else kinds.LABEL_OPTIONAL
        type_name = f".tensorflow.{of}" if of else None
        message.field.add(
            name=name, number=number, type=getattr(kinds, f"TYPE_{kind}"), label=label,
            type_name=type_name, **how,
        )  # fmt: skip

    lists = {"bytes": "BytesList", "float": "FloatList", "int64": "Int64List"}
    for kind, name in lists.items():
        add(file.message_type.add(name=name), "value", 1, kind.upper(), repeated=1)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (kind, name) in enumerate(lists.items(), 1):
        add(feature, f"{kind}_list", number, "MESSAGE", name, oneof_index=0)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    add(entry, "key", 1, "STRING")
    add(entry, "value", 2, "MESSAGE", "Feature")
    add(features, "feature", 1, "MESSAGE", "Features.FeatureEntry", repeated=1)
    add(file.message_type.add(name="Example"), "features", 1, "MESSAGE", "Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


def masked_crc(data: bytes) -> bytes:
    """Sum data as TFRecord does: CRC-32C, turned and shifted, 4 bytes."""
    import crc32c

    crc = crc32c.crc32c(data)
    return CRC.pack(((crc >> 15 | crc << 17) + CRC_MASK) & 0xFFFFFFFF)


@contextlib.contextmanager
def create_tfrecord(file: Path, stored: str) -> Iterator[Add]:
    """Write one shard; see `labkit.parts.packing.shards.Format`."""
    make_example = example_class()
    with file.open("wb") as opened:

        def add(name: str, record: bytes, annotation: Annotation, size_px: tuple) -> int:
            example = make_example()
            features = example.features.feature
            features["image/encoded"].bytes_list.value.append(record)
            features["image/format"].bytes_list.value.append(FORMATS.get(stored, b"jpeg"))
            features["image/filename"].bytes_list.value.append(os.fsencode(name))
            if stored == PIXELS:
                features["image/height"].int64_list.value.append(int(size_px[0]))
                features["image/width"].int64_list.value.append(int(size_px[1]))
            for side, values in zip(SIDES, annotation.boxes_xyxy.T):
                numbers = features[f"image/object/bbox/{side}"].float_list
                numbers.SetInParent()  # an image without boxes has an empty list
                numbers.value.extend(values.tolist())
            labels = features["image/object/class/label"].int64_list
            labels.SetInParent()
            labels.value.extend(annotation.category_ids.tolist())
            # Features are a map, whose order would differ from process to process.
            content = example.SerializeToString(deterministic=True)
            length, start = LENGTH.pack(len(content)), opened.tell()
            opened.writelines([length, masked_crc(length), content, masked_crc(content)])
            return start

        yield add


class TFRecordShard:
    """One shard, opened; see `labkit.parts.packing.shards.Shard`."""

    def __init__(self, file: Path, index: Index) -> None:
        self._example = example_class()
        self._ends = np.append(index.offsets[1:], file.stat().st_size)
        self._starts = index.offsets
        self._file = OpenFile(file)

    def read(self, j: int) -> bytes:
        """Read one Example, check both sums as TensorFlow does, and parse it.

        Raises:
            ValueError: a sum differs.
        """
        start, end = int(self._starts[j]), int(self._ends[j])
        frame = self._file.read(end - start, at=start)
        length, content = frame[: LENGTH.size], frame[START_BYTES:-CRC_BYTES]
        found = masked_crc(length) + masked_crc(content)
        stored = frame[LENGTH.size : START_BYTES] + frame[-CRC_BYTES:]
        if found != stored:
            raise ValueError(f"TFRecord must have CRCs {stored.hex()}, got {found.hex()}")
        example = self._example.FromString(content)
        return example.features.feature["image/encoded"].bytes_list.value[0]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


TFRECORD = Format(
    name="tfrecord",
    suffix=".tfrecord",
    create=create_tfrecord,
    open=TFRecordShard,
    needs=("crc32c", "google.protobuf.message_factory"),
)
# Whoever reads several shards at once needs several: 1 GiB holds all that a small data set has.
TFRECORD_4M = replace(TFRECORD, name="tfrecord_4m", shard_bytes=4 << 20)
