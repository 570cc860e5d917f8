"""Pack a data set: many images in a few files, scaled or preprocessed ahead of training.

    python data_scripts/pack_dataset.py data/photos --to lmdb
    python data_scripts/pack_dataset.py data/photos --to raw --stored pixels --px 256 --jobs 4
    python data_scripts/pack_dataset.py data/photos --to tar --stored sample --engine spark
    python data_scripts/pack_dataset.py data/photos --to lmdb --verify

A stopped run goes on where it stopped; nothing has the pack's name before it is whole.  Main
trap: what is scaled or preprocessed is another image than before, and rows that read it say so.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

from labkit import units
from labkit.converter import about
from labkit.offline import ENGINES
from labkit.packs import ensure_pack
from labkit.parts.decoding import DECODERS
from labkit.parts.packing import JPEG, PACKINGS, SAMPLE, Reader, pack_format
from labkit.parts.packing.manifest import MANIFEST, read_manifest
from labkit.parts.preprocessing import PREPROCESSORS
from labkit.places import is_url, place
from labkit.progress import bar
from labkit.settings import Settings, field_kinds
from labkit.stored import is_original, open_original, open_reader, stored_folder
from labkit.trial import Skip

DEFAULT_PX = 256
VERIFIED_AT_ONCE = 256  # images between two movements of the bar
SHOWN = 10  # of the records that are not what was packed


def main(arguments: list[str] | None = None) -> int:
    """Run from a shell.

    Returns:
        The exit status: 0; 1 after an error, and where `--verify` found one; 2 after wrong use;
        130 after Ctrl-C.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        settings = _settings(given)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if threading.current_thread() is threading.main_thread():
        # Asked to end from outside, end the processes too, just as after Ctrl-C.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    out = Path(given.out).expanduser() if given.out else None
    try:
        return verify(settings, out) if given.verify else pack(settings, out, given)
    except (ValueError, OSError, ImportError, RuntimeError, Skip) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130


def pack(settings: Settings, out: Path | None, given: argparse.Namespace) -> int:
    """Make a pack, and say what it is, what it took and what reads it."""
    before = _identity(out or stored_folder(settings))
    cost = ensure_pack(
        settings,
        to=out,
        engine=f"{given.engine}:{given.master}" if given.master else given.engine,
        jobs=given.jobs,
        say=lambda line: None if line.startswith("packed ") else print(line, file=sys.stderr),
        progress=True,
        shard_bytes=round(given.shard_mb * 1e6) if given.shard_mb else None,
    )
    made = "is there already" if _identity(Path(cost["folder"])) == before else "is made"
    print(
        f"{cost['folder']} {made}: {units.count(cost['images'], 'image')}, "
        f"{units.count_bytes(cost['bytes'])} as {settings.packing}"
    )
    if cost["pack_s"]:
        print(
            f"it took {units.seconds(cost['pack_s'])} with the engine {cost['engine']} and "
            f"{units.count(cost['jobs'], 'worker')}: "
            f"{units.rate(cost['images'] / cost['pack_s'])}, "
            f"{units.count_bytes(cost['bytes'] / cost['pack_s'])}/s"
        )
    settings = _reading(settings, out)
    print(f"a notebook reads it with: Settings({_words(settings)})")
    print(f"a shell: labkit run EXPERIMENT {_options(settings)}")
    return 0


def verify(settings: Settings, out: Path | None) -> int:
    """Compare every record of a pack with what was packed, and the pack with its data."""
    folder = out or stored_folder(settings)
    open_reader.cache_clear()
    reader = open_reader(settings.packing, folder)
    wrong = [] if is_original(settings) else _stale(settings, reader)
    with bar(desc=f"verifying {folder.name}", total=len(reader), unit="image") as shown:
        for first in range(0, len(reader), VERIFIED_AT_ONCE):
            indices = range(len(reader))[first : first + VERIFIED_AT_ONCE]
            wrong += reader.verify(indices)
            shown.update(len(indices))
    for line in wrong[:SHOWN]:
        print(line)
    if wrong:
        found = units.count(len(wrong), "difference")
        more = f" (the first {SHOWN} are shown)" if len(wrong) > SHOWN else ""
        print(
            f"error: {folder} must be what was packed, got {found}{more}; remove it and pack again",
            file=sys.stderr,
        )
        return 1
    size = units.count_bytes(int(reader.image_bytes.sum()))
    print(f"{folder} is whole: {units.count(len(reader), 'image')}, {size}, all as packed")
    return 0


def _identity(folder: Path) -> object:
    """Give what tells one pack in a folder from the next; None where there is none."""
    manifest = folder / MANIFEST
    return (manifest.stat().st_ino, manifest.stat().st_mtime_ns) if manifest.is_file() else None


def _stale(settings: Settings, reader: Reader) -> list[str]:
    wanted = about(settings, open_original(settings))
    found = read_manifest(reader.root)
    return [
        f"{name} must be {value!r}, as {settings.data} has it, got {found.get(name)!r}"
        for name, value in wanted.items()
        if found.get(name) != value
    ]


def _settings(given: argparse.Namespace) -> Settings:
    """Turn options into settings, and refuse those that do not fit together."""
    where = place(given.data)
    data, packed_as = str(where), None if is_url(where) else pack_format(where)
    if packed_as is not None:
        if not given.verify:
            raise ValueError(
                f"data must be images as they were made, got a pack ({packed_as}) in {data}; "
                "give the folder that it was made from"
            )
        return Settings(data=data, packing=packed_as, stored=read_manifest(Path(data))["stored"])
    if given.to is None:
        raise ValueError(f"to must be one of {', '.join(PACKINGS)}, got nothing; add --to lmdb")
    if given.stored not in PACKINGS[given.to].stores:
        raise ValueError(
            f"stored must be {' or '.join(PACKINGS[given.to].stores)} for the packing {given.to}, "
            f"got {given.stored!r}; choose that, or another packing"
        )
    if given.to == "folder" and given.stored == JPEG and not given.out:
        raise ValueError(
            "stored must be resized for the packing folder, got 'jpeg', which is the data as it "
            "is; choose that, another packing, or --out for a copy"
        )
    if given.master and given.engine == "local":
        raise ValueError(
            f"master must be left out for the engine local, got {given.master!r}; "
            "choose --engine spark for it"
        )
    if given.jobs is not None and given.jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {given.jobs}; leave it out for all cores")
    if given.shard_mb is not None and (given.shard_mb <= 0 or given.to == "folder"):
        raise ValueError(
            f"shard_mb must be more than 0, and left out for the packing folder, "
            f"got {given.shard_mb:g} for {given.to}; leave it out"
        )
    if is_url(where) and not given.out:
        raise ValueError(
            f"out must be a folder of this machine for data at a URL, got nothing for {data!r}; "
            "add --out FOLDER"
        )
    inside = Path(given.out or "/").expanduser().absolute()
    if given.out and not is_url(where) and inside.is_relative_to(where.absolute()):
        raise ValueError(
            f"out must be a folder outside of the data, got {given.out!r}; "
            "leave it out to have the pack beside the data"
        )
    return Settings(
        data=data, packing=given.to, stored=given.stored, input_px=given.px, decoder=given.decoder,
        preprocessor=given.preprocessor, seed=given.seed,
    )  # fmt: skip


def _reading(settings: Settings, out: Path | None) -> Settings:
    """Give the settings that read the pack, from whatever folder a notebook lies in."""
    return replace(settings, data=str((out or Path(settings.data)).absolute()))


def _words(settings: Settings) -> str:
    return ", ".join(f"{name}={getattr(settings, name)!r}" for name in _names(settings))


def _options(settings: Settings) -> str:
    options = [(f"--{n.replace('_', '-')}", str(getattr(settings, n))) for n in _names(settings)]
    return shlex.join(word for option in options for word in option)


def _names(settings: Settings) -> list[str]:
    names = ["data", "packing", "stored"]
    if settings.stored != JPEG:
        names.append("input_px")
    if settings.stored == SAMPLE:
        names += ["preprocessor", "seed"]
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("data", help="folder with the images, or its URL; with --verify also a pack")
    add("--to", choices=PACKINGS, help="how the images are to be stored")
    add(
        "--stored", choices=field_kinds()["stored"][1], default=JPEG,
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
    add(
        "--shard-mb", type=float, metavar="MB",
        help="a file's size, which is what a stopped run does again; unset: the format's own",
    )  # fmt: skip
    add("--verify", action="store_true", help="check a pack that is there, record by record")
    return parser


if __name__ == "__main__":
    sys.exit(main())
