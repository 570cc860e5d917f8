r"""Letters: which of them the fonts of a chart have, and what stands for the others.

    "/mnt/ไทย" -> drawable() -> "/mnt/\u0e44\u0e17\u0e22", where no font has these three

A disk, a folder or a variant may be called anything, and charts quote it.  Main trap:
matplotlib draws the same box for every letter that it has no font for, and warns of each; and
the upright, bold and slanted faces of one font do not have the same letters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.font_manager import FontProperties


def drawable(text: str, font: FontProperties) -> str:
    """Write the letters that no font has by their numbers, as Python would.

    Args:
        text: in any script; line breaks stay.
        font: its families are tried in their order; each of them must be installed.
    """
    if text.isascii() and text.isprintable():  # nearly all texts: no font need be opened
        return text
    return "".join(
        letter if letter.isspace() or _has(font, letter) else _number(letter) for letter in text
    )


def _has(font: FontProperties, letter: str) -> bool:
    from matplotlib.font_manager import findfont, get_font

    for family in font.get_family():
        face = font.copy()
        face.set_family(family)
        if get_font(findfont(face)).get_char_index(ord(letter)):
            return True
    return False


def _number(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
