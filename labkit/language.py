"""Sentences in the language of the locale: English, or Chinese after the table in `chinese`.

    Text("{n} batches").format(n=50) ─▶ "50 batches"               in code, JSON and stored files
                                     ─▶ shown ─▶ "50 个 batch"      in a Chinese terminal

Source: POSIX.1-2024, 8.2 "Internationalization Variables", for which variable decides.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable
from typing import Any

from labkit.chinese import CHINESE

VARIABLES = ("LC_ALL", "LC_MESSAGES", "LANG")


class Name(str):
    """A name in the user's code, which is the same in all languages."""

    __slots__ = ()


class Text(str):
    """An English text that remembers its template and values, so that `shown` can translate it.

    Args:
        template: with named fields, as `str.format` takes them.
    """

    template: str
    values: dict[str, Any]

    def __new__(cls, template: str) -> Text:  # noqa: D102 - a method that explains itself
        return cls._made(template, template, {})

    @classmethod
    def _made(cls, english: str, template: str, values: dict[str, Any]) -> Text:
        text = super().__new__(cls, english)
        text.template, text.values = template, values
        return text

    def format(self, *_: object, **values: object) -> Text:
        """Return the text with its values: numbers, strings, other texts."""
        return self._made(self.template.format(**values), self.template, values)

    def join(self, parts: Iterable[str], /) -> Text:
        """Return texts with this one between them."""
        joined, *others = [*parts] or [""]
        for part in others:
            joined = _pair(_pair(joined, self), part)
        return _pair(joined, "")

    def __add__(self, other: str) -> Text:
        return _pair(self, other)

    def __radd__(self, other: str) -> Text:
        return _pair(other, self)


def _pair(first: str, second: str) -> Text:
    return Text("{first}{second}").format(first=first, second=second)


def capitalized(text: str) -> Text:
    """Return a text as the beginning of a sentence."""
    return Text._made(text[:1].upper() + text[1:], "{text}", {"text": text})


def is_chinese() -> bool:
    """Return whether the locale's messages are Chinese."""
    locales = filter(None, map(os.environ.get, VARIABLES))
    return next(locales, "").startswith("zh")


def shown(text: str) -> str:
    """Return a text in the language of the locale; what the table lacks stays English."""
    return str(_chinese(text)) if is_chinese() else str(text)


def _chinese(value: object) -> object:
    if isinstance(value, Text):
        template = CHINESE.get(value.template, value.template)
        values = {name: _chinese(each) for name, each in value.values.items()}
        return template.format(**values) if values else template
    if isinstance(value, str) and not isinstance(value, Name):
        return CHINESE.get(value, value)
    return value


def columns(text: str) -> int:
    """Return the columns that a text takes in a terminal: Chinese characters take two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
