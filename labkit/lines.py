"""Lines: sentences that a notebook shows as a list and a shell as lines."""

from __future__ import annotations

from html import escape


class Lines(tuple):
    """Sentences for people; still a tuple of plain texts."""

    def __str__(self) -> str:
        return "\n".join(f"- {line}" for line in self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in self)}</ul>"
