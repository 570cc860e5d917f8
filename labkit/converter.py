"""Converter: what is done to an image before it is stored, and what a pack says of that.

    read ─ decode ─ scale to px ─ or a whole preprocessor → name, content, boxes

Main trap: it runs in processes that were started elsewhere, in another directory and without a
person's own parts.  So it names the data by an absolute path, and carries those parts along.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from labkit.contracts import Annotation, Sample
from labkit.parts.decoding import DECODERS
from labkit.parts.packing import JPEG, PIXELS, SAMPLE, Content, Reader
from labkit.parts.packing.scaling import encode_jpeg, scale
from labkit.parts.preprocessing import PREPROCESSORS
from labkit.settings import Settings
from labkit.stored import open_original
from labkit.tables import register


@dataclass(frozen=True, kw_only=True)
class Converter:
    """What is done to each image before it is stored; picklable, for other processes.

    It names the data instead of holding it, so that little travels with every call.
    """

    settings: Settings
    own: bytes = b""
    """A person's own parts, for processes that do not have them."""

    @property
    def reader(self) -> Reader:
        """The data, opened once per process."""
        return open_original(self.settings)

    def __setstate__(self, state: dict) -> None:
        import cv2

        cv2.setNumThreads(0)  # this is one of as many processes as there are cores
        register(state["own"])
        self.__dict__.update(state)

    def __call__(self, i: int) -> tuple[str, Content, Annotation]:
        """Give image `i` as it is to be stored: name, content and boxes.

        Raises:
            ValueError: it cannot be read; the message names it.
        """
        settings = self.settings
        try:
            content, annotation = self.reader.read(i)
        except OSError as error:  # not the pack's: that one may be full
            raise ValueError(
                f"data must be images that can be read, got {error.strerror or error} for "
                f"{self.reader.where(i)}; make or download the data again"
            ) from error
        if settings.stored == JPEG:
            return self.reader.name(i), content, annotation
        try:
            image_rgb = DECODERS[settings.decoder](content)
        except ValueError as error:
            raise ValueError(f"{self.reader.where(i)}: {error}") from error
        if settings.stored == SAMPLE:
            sample = Sample(
                image_rgb=image_rgb,
                annotation=annotation,
                sample_id=i,
                epoch=0,  # every epoch will have this one's random draws
                seed=settings.seed,
            )
            per_sample = PREPROCESSORS[settings.preprocessor].per_sample
            return self.reader.name(i), per_sample(sample, settings.input_px), annotation
        smaller, annotation = scale(image_rgb, annotation, settings.input_px)
        content = smaller if settings.stored == PIXELS else encode_jpeg(smaller)
        return self.reader.name(i), content, annotation


def about(settings: Settings, reader: Reader) -> dict[str, object]:
    """Say what a pack is made from and how: what has to be the same for it to be used."""
    facts: dict[str, object] = {
        "stored": settings.stored,
        "source_hash": fingerprint(reader),
        "boxes": reader.boxes,
    }
    if settings.stored != JPEG:
        facts |= {"px": settings.input_px, "decoder": settings.decoder}
    if settings.stored == SAMPLE:
        facts |= {"preprocessor": settings.preprocessor, "seed": settings.seed}
    return facts


def fingerprint(reader: Reader) -> str:
    """Name the data: its manifest's hash, or where there is none its files' names and sizes."""
    if reader.source_hash != "unknown":
        return reader.source_hash
    digest = hashlib.sha256()
    for i, size_bytes in enumerate(reader.image_bytes.tolist()):
        digest.update(f"{reader.name(i)}\0{size_bytes}\n".encode(errors="surrogateescape"))
    return f"sizes:{digest.hexdigest()}"
