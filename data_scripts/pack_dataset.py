"""Pack a dataset: many images in a few files, scaled or preprocessed ahead of training.

    python data_scripts/pack_dataset.py data/photos --to lmdb
    python data_scripts/pack_dataset.py data/photos --to raw --storage-format pixels --px 256
    python data_scripts/pack_dataset.py data/photos --to hdf5 --storage-format sample --engine spark
    python data_scripts/pack_dataset.py data/photos --to lmdb --verify

A pack gets its name when it is complete. Scaled or preprocessed images differ from the originals,
so rows that read them are labelled.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

from labkit import units
from labkit.contracts import Skip
from labkit.files import bar
from labkit.parts.decoding import DECODERS
from labkit.parts.packing import PACKINGS
from labkit.parts.packing.manifest import read_manifest
from labkit.parts.packing.remote import data_folder
from labkit.parts.preprocessing import PREPROCESSORS
from labkit.resolve import open_data, open_reader, source_folder
from labkit.runs.packs import ENGINES, about, ensure_pack
from labkit.settings import Settings, field_kinds

DEFAULT_PX = 256
SHOWN = 10  # of the records that are not what was packed


def main(arguments: list[str] | None = None) -> int:
    """Run from a shell.

    Returns:
        The exit status: 0; 1 after an error, and where `--verify` found one; 2 after wrong use;
        130 after Ctrl-C.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.storage_format not in PACKINGS[given.to].stores:
        parser.error(
            f"storage_format must be one of {', '.join(PACKINGS[given.to].stores)} for {given.to}"
        )
    if given.jobs is not None and given.jobs < 1:
        parser.error(f"jobs must be at least 1, got {given.jobs}")
    settings = Settings(
        data=given.data, packing=given.to, storage_format=given.storage_format, input_px=given.px,
        decoder=given.decoder, preprocessor=given.preprocessor, seed=given.seed,
    )  # fmt: skip
    if threading.current_thread() is threading.main_thread():
        # Asked to end from outside, end the processes too, just as after Ctrl-C.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    out = Path(given.out).expanduser().absolute() if given.out else None
    try:
        return verify(settings, out) if given.verify else pack(settings, out, given)
    except (ValueError, OSError, ImportError, RuntimeError, Skip) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped: no pack was made", file=sys.stderr)
        return 130


def pack(settings: Settings, out: Path | None, given: argparse.Namespace) -> int:
    """Make a pack, and print its size, what making it took and the settings that read it."""
    cost = ensure_pack(
        settings,
        to=out,
        engine=f"{given.engine}:{given.master or ''}",
        jobs=given.jobs,
        say=lambda line: print(line, file=sys.stderr),
        progress=True,
    )
    if cost is None:
        raise ValueError(
            f"to must be another packing, got {settings.packing!r}, in which the data is already"
        )
    print(
        f"{cost['folder']}: {units.count(cost['images'], 'image')}, "
        f"{units.count_bytes(cost['bytes'])} as {settings.packing}"
    )
    if cost["pack_s"]:
        print(
            f"it took {units.seconds(cost['pack_s'])} with the engine {cost['engine']} and "
            f"{units.count(cost['jobs'], 'job')}: "
            f"{units.rate(cost['images'] / cost['pack_s'])}"
        )
    names = ["packing", "storage_format"] + (
        ["input_px"] if settings.storage_format != "jpeg" else []
    )
    names += ["preprocessor", "seed"] if settings.storage_format == "sample" else []
    settings = replace(settings, data=cost["folder"] if out else str(Path(given.data).absolute()))
    words = ", ".join(f"{name}={getattr(settings, name)!r}" for name in ["data", *names])
    print(f"a notebook reads it with: Settings({words})")
    return 0


def verify(settings: Settings, out: Path | None) -> int:
    """Compare every record of a pack with what was packed, and the pack with its data."""
    folder = out or source_folder(settings)
    open_reader.cache_clear()
    reader = open_reader(settings.packing, folder)
    wrong = []
    # Else the pack itself was given, and there is no other data.
    if source_folder(settings) != data_folder(settings.data):
        manifest = read_manifest(folder)
        wanted = about(settings, open_data(settings))
        wrong = [
            f"{name} must be {value!r}, got {manifest.get(name)!r} in {folder}"
            for name, value in wanted.items()
            if manifest.get(name) != value
        ]
    wrong += reader.verify(bar(range(len(reader)), desc=f"verifying {folder.name}", unit="image"))
    if wrong:
        print("\n".join(wrong[:SHOWN]))
        raise ValueError(
            f"{folder} must be what was packed, got {units.count(len(wrong), 'difference')}; "
            "remove it and pack again"
        )
    print(f"{folder} is whole: {units.count(len(reader), 'image')}, all as packed")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("data", help="folder with the images, or its URL")
    add("--to", choices=PACKINGS, required=True, help="how the images are to be stored")
    add(
        "--storage-format", choices=field_kinds()["storage_format"][1], default="jpeg",
        help="what of an image: its JPEG, that scaled down, its pixels, or a finished sample",
    )  # fmt: skip
    add("--px", type=int, default=DEFAULT_PX, help="side in pixels; of no effect on jpeg")
    add(
        "--preprocessor", choices=PREPROCESSORS, default=Settings().preprocessor,
        help="what makes a sample of an image",
    )  # fmt: skip
    add("--decoder", choices=DECODERS, default=Settings().decoder, help="what reads the JPEGs")
    add("--out", help="the pack's folder; unset: beside the data, where runs look for it")
    add("--jobs", type=int, help="processes; unset: one for each core, and one to copy JPEGs")
    add("--engine", choices=ENGINES, default="local", help="who does the work")
    add("--master", help="Spark's URL, such as spark://host:7077; unset: this machine's cores")
    add("--seed", type=int, default=0, help="of a sample's random draws")
    add("--verify", action="store_true", help="check a pack that is there, record by record")
    return parser


if __name__ == "__main__":
    sys.exit(main())
