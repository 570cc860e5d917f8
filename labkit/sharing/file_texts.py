"""File texts: the words in a file that people may read, for a search before it is sent.

    .json .jsonl .csv .md ─ what they say  .png ─ its text chunks
    .svg ─ its texts and comments          .pdf ─ its strings, and those of its decompressed pages

Main trap: markup, fonts and pixels are no words; a short name found among them means nothing,
and every name in a PDF begins with a slash.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterator
from html import unescape

_PNG_CHUNKS = (b"tEXt", b"zTXt", b"iTXt")
_PDF_STREAM = re.compile(rb"stream\r?\n(.*?)\r?\nendstream", re.DOTALL)
_PDF_STRING = re.compile(rb"\(((?:\\.|[^\\()])*)\)", re.DOTALL)
_PDF_ARRAY = re.compile(rb"\[((?:\s*\((?:\\.|[^\\()])*\)|[\s\d.-])*)\]", re.DOTALL)
_PDF_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f"}
_PDF_TEXT = re.compile(rb"\bBT\s")  # begins a text in a page's program; fonts and images have none


def texts(name: str, data: bytes) -> tuple[list[str], list[str]]:
    """Take the words out of a file.

    Args:
        name: its suffix says how.
        data: the file.

    Returns:
        Texts as they were written; and pieces of text as they were drawn, in which letters
        of another font are missing.
    """
    suffix = name.rpartition(".")[2]
    if suffix == "png":
        return list(_png(data)), []
    if suffix == "pdf":
        return _pdf(data)
    text = data.decode("utf-8")
    if suffix == "svg":
        return [unescape(part) for part in _svg(text)], []
    if suffix in ("json", "jsonl"):
        return list(_strings([json.loads(line) for line in _documents(suffix, text)])), []
    # In Markdown a backslash makes markup a letter: "https\\://".
    return [re.sub(r"\\([^\w\s])", r"\1", text) if suffix == "md" else text], []


def _documents(suffix: str, text: str) -> list[str]:
    return text.splitlines() if suffix == "jsonl" else [text]


def _strings(value: object) -> Iterator[str]:
    # Parsed, for in JSON a backslash is two.
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _strings([*value, *value.values()])
    elif isinstance(value, list):
        for below in value:
            yield from _strings(below)


def _png(data: bytes) -> Iterator[str]:
    place = 8  # after the signature: length, kind, content, checksum
    while place + 12 <= len(data):
        length, kind = struct.unpack(">I4s", data[place : place + 8])
        chunk = data[place + 8 : place + 8 + length]
        if kind in _PNG_CHUNKS:
            keyword, _, rest = chunk.partition(b"\0")
            if kind == b"zTXt":
                rest = zlib.decompress(rest[1:])
            elif kind == b"iTXt":  # compressed?, method, language, keyword in it, text
                packed, (_, _, rest) = rest[0], rest[2:].split(b"\0", 2)
                rest = zlib.decompress(rest) if packed else rest
            encoding = "utf-8" if kind == b"iTXt" else "latin-1"
            yield f"{keyword.decode('latin-1')}: {rest.decode(encoding)}"
        place += 12 + length


def _svg(text: str) -> Iterator[str]:
    # Letters are drawn as shapes; what they say stands beside them in a comment.
    yield from re.findall(r"<!--(.*?)-->", text, re.DOTALL)
    yield from (part for part in re.split(r"<[^>]*>", re.sub(r"<!--.*?-->", "", text)) if part)


def _pdf(data: bytes) -> tuple[list[str], list[str]]:
    outside = _PDF_STREAM.sub(b"", data)
    drawn = []
    for stream in _PDF_STREAM.findall(data):
        try:
            stream = zlib.decompress(stream)
        except zlib.error:
            continue  # an image in its own format, or nothing compressed at all
        if not _PDF_TEXT.search(stream):
            continue
        drawn += [_pdf_text(string) for string in _PDF_STRING.findall(stream)]
        # One word is several strings where letters stand closer: [(A) 20 (nn)] TJ
        for array in _PDF_ARRAY.findall(stream):
            drawn.append("".join(_pdf_text(string) for string in _PDF_STRING.findall(array)))
    return [_pdf_text(string) for string in _PDF_STRING.findall(outside)], drawn


def _pdf_text(string: bytes) -> str:
    string = re.sub(rb"\\([0-7]{1,3})", lambda m: bytes([int(m[1], 8) & 255]), string)
    string = re.sub(rb"\\(.)", lambda m: _PDF_ESCAPES.get(m[1], m[1]), string, flags=re.DOTALL)
    if string.startswith(b"\xfe\xff"):
        return string[2:].decode("utf-16-be", "replace")
    if string[::2].count(0) * 2 >= len(string[::2]) > 0:  # so are a page's, without the mark
        return string.decode("utf-16-be", "replace")
    return string.decode("latin-1")
