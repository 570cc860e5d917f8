"""Make a dataset of synthetic photographs with boxes, for machines without COCO.

    python data_scripts/make_photos.py data/photos --images 1000

A stopped run continues where it stopped, and more images extend a finished one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from labkit import units
from labkit.contracts import Skip
from labkit.parts.packing.folder import open_folder
from labkit.photos.make import make_photos


def main(arguments: list[str] | None = None) -> int:
    """Run from a shell.

    Returns:
        The exit status: 0, 1 after an error, 130 after Ctrl-C.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", help="folder to make or to extend, such as data/photos")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same bytes")
    parser.add_argument("--jobs", type=int, help="processes; default: one for each core")
    parser.add_argument(
        "--or-adopt", action="store_true", help="take a folder that holds images already as it is"
    )
    given = parser.parse_args(arguments)
    try:
        if given.or_adopt and (adopted := _adopt(given.out)):
            print(adopted)
            return 0
        manifest = make_photos(given.out, given.images, seed=given.seed, jobs=given.jobs)
    except (ValueError, OSError, Skip) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    mean = units.count_bytes(manifest["bytes"] / manifest["images"])
    print(f"{manifest['images']} images of {mean} on average in {given.out}")
    return 0


def _adopt(out: str) -> str:
    """Return what a folder holds as text; empty if it is no whole dataset."""
    try:
        reader = open_folder(Path(out))
    except (ValueError, OSError):
        return ""  # missing, empty or unfinished; `make_photos` refuses anything else
    boxes = "with boxes" if reader.boxes == "coco" else "without boxes, so they are made up"
    return f"using the {len(reader)} images in {out}, {boxes}"


if __name__ == "__main__":
    sys.exit(main())
