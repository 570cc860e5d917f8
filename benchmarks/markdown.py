"""Tables and lists in Markdown, for what a benchmark writes."""

from collections.abc import Iterable, Sequence

from labkit.render import escape


def bullets(lines: Iterable[str]) -> str:
    """Write a list."""
    return "\n".join(f"- {escape(line)}" for line in lines)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table."""
    lines = [list(map(escape, header)), ["---"] * len(header), *(map(escape, r) for r in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
