"""The words in a file are found, and nothing else is taken for one."""

import struct
import zlib

import pytest
from matplotlib.figure import Figure

from labkit import figures
from labkit.sharing.file_texts import texts


@pytest.fixture(scope="module")
def figure():
    figure = Figure(figsize=(3, 1))
    figure.set_label("drawn on quillbox (…/photos)")
    figure.text(0.1, 0.5, "AVAnna of quillbox, …/photos")
    return figure


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_a_pictures_description_is_read_whole(figure, kind):
    written, _ = texts(f"chart.{kind}", figures.to_bytes(figure, kind))
    assert any("drawn on quillbox (…/photos)" in text for text in written)


@pytest.mark.parametrize("kind", ["svg", "pdf"])
def test_what_a_picture_shows_is_read_too(figure, kind):
    written, drawn = texts(f"chart.{kind}", figures.to_bytes(figure, kind))
    assert any("AVAnna of quillbox" in text for text in [*written, *drawn])


def test_markup_and_fonts_are_no_words(figure):
    for kind in ("svg", "pdf"):
        for found in texts(f"chart.{kind}", figures.to_bytes(figure, kind)):
            assert not any("/Type" in text or "<path" in text for text in found)


def test_all_kinds_of_text_in_a_png_are_read():
    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        [
            chunk(b"IHDR", bytes(13)),
            chunk(b"tEXt", b"Author\0one"),
            chunk(b"zTXt", b"Author\0\0" + zlib.compress(b"two")),
            chunk(b"iTXt", b"Author\0\0\0\0\0" + "drei…".encode()),
            chunk(b"iTXt", b"Author\0\1\0\0\0" + zlib.compress(b"four")),
            chunk(b"IDAT", b"five"),
            chunk(b"IEND", b""),
        ]
    )
    assert texts("x.png", png) == ([f"Author: {x}" for x in ("one", "two", "drei…", "four")], [])


def test_json_is_read_as_what_it_says():
    assert texts("run.json", b'{"C:\\\\x": ["\\u00e9", 1, null]}') == (["C:\\x", "é"], [])
    assert texts("trials.jsonl", b'{"a": "b"}\n{"a": "c"}\n') == (["a", "b", "a", "c"], [])
    assert texts("table.csv", b"a,b\n") == (["a,b\n"], [])
    assert texts("table.md", rb"| https\://x.org \<b\> |") == (["| https://x.org <b> |"], [])
