"""Back ends: with which JPEG library was each decoder built?

    decoder -> what its library says of itself, or a line in the library that it carries

Main trap: wheels of one library differ in this from system to system, and it decides the speed.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from labkit.parts.decoding.libraries import open_library

UNKNOWN = "unknown"


def back_end(decoder: str) -> str:
    """Say with which JPEG library a decoder was built.

    Returns:
        As "libjpeg-turbo 3.1.2"; "unknown" for what is missing or does not say.
    """
    if decoder not in BACK_ENDS:  # a person's own
        return UNKNOWN
    try:
        return BACK_ENDS[decoder]()
    except (ImportError, OSError):
        return UNKNOWN


def _opencv() -> str:
    return parse_build_information(open_library("cv2", "opencv-python").getBuildInformation())


def parse_build_information(build: str) -> str:
    """Find the JPEG library in what OpenCV says of its build, its folder left out."""
    found = re.search(r"^\s*JPEG:[ \t]+(\S+)(?:[ \t]+\(ver ([^)\s]+)\))?", build, re.MULTILINE)
    if found is None or found[1] == "NO":
        return UNKNOWN
    library = re.split(r"[/\\]", found[1])[-1].removeprefix("build-")
    return f"{library} {found[2] or UNKNOWN}"


def _pillow() -> str:
    features = open_library("PIL.features", "pillow")
    if features.check_feature("libjpeg_turbo"):
        return f"libjpeg-turbo {features.version_feature('libjpeg_turbo') or UNKNOWN}"
    version = features.version_codec("jpg") if features.check_codec("jpg") else None
    return f"libjpeg {version}" if version else UNKNOWN


def _carried(package: str, files: str) -> str:
    """Find the line in which libjpeg-turbo names itself, in the files of a package.

    It is not imported for that: torchvision would bring half of torch along.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return UNKNOWN
    for binary in sorted(Path(spec.origin).parents[1].glob(files)):
        if found := re.search(rb"libjpeg-turbo version (\d[\w.]*)", binary.read_bytes()):
            return f"libjpeg-turbo {found[1].decode()}"
    return UNKNOWN


_simplejpeg = partial(_carried, "simplejpeg", "simplejpeg/_jpeg*")
BACK_ENDS: dict[str, Callable[[], str]] = {
    "opencv": _opencv,
    "pillow": _pillow,
    "simplejpeg": _simplejpeg,
    "simplejpeg_scaled": _simplejpeg,
    "kornia_rs": partial(_carried, "kornia_rs", "kornia_rs/kornia_rs.*"),
    "torchvision": partial(_carried, "torchvision", "torchvision*/**/libjpeg*"),
}
