"""Every decoder says with which JPEG library it was built, or that it does not know."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from labkit.parts.decoding import DECODERS, back_ends, jpeg_back_ends


def test_every_decoder_names_its_jpeg_library(monkeypatch):
    monkeypatch.setitem(DECODERS, "ones_own", DECODERS["pillow"])
    found = jpeg_back_ends()
    assert set(found) == set(DECODERS)
    assert found["ones_own"] == "unknown"
    for name in back_ends.BACK_ENDS:
        # A distribution's own build may be linked to a library that says nothing.
        assert found[name] == "unknown" or len(found[name].split()) == 2
        assert "/" not in found[name]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("    JPEG:                        build-libjpeg-turbo (ver 3.1.2-70)",
         "libjpeg-turbo 3.1.2-70"),
        ("    JPEG:  libjpeg-turbo (ver 2.1.3-62)", "libjpeg-turbo 2.1.3-62"),
        ("    JPEG:  /home/someone/env/lib/libjpeg.so (ver 80)", "libjpeg.so 80"),
        ("    JPEG:  C:\\env\\jpeg.lib (ver 62)", "jpeg.lib 62"),
        ("    JPEG:  build", "build unknown"),
        ("    JPEG:  NO", "unknown"),
        ("    JPEG 2000:                   build (ver 2.5.3)", "unknown"),
    ],
)  # fmt: skip
def test_opencvs_jpeg_library_is_found_without_its_folder(line, expected):
    build = f"  Media I/O:\n    ZLib:  build (ver 1.3.1)\n{line}\n    PNG:  build (ver 1.6.43)\n"
    assert back_ends.parse_build_information(build) == expected


def test_a_library_that_is_not_there_is_unknown(monkeypatch):
    def missing(module, package=""):
        raise ImportError(package)

    monkeypatch.setattr(back_ends, "open_library", missing)
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    assert set(jpeg_back_ends().values()) == {"unknown"}


def test_a_library_is_not_imported_to_be_asked():
    code = (
        "import sys; from labkit.parts.decoding import jpeg_back_ends; jpeg_back_ends(); "
        "sys.exit(bool({'simplejpeg', 'kornia_rs', 'torchvision'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
