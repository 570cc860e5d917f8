"""Inline: a program that imports labkit → the same program without labkit.

    program ─ which names, from where? ─▶ their own source, and what that needs
            ─▶ imports · the program's first constants · the source · the rest of the program

Nothing is copied by hand, so what is handed out cannot drift from what was measured.  Main
trap: names are found by reading, not by running, so whatever is taken must be defined at the
top of its module, and may not look anything up by a name in a string.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

PACKAGE = "labkit"
NOQA = re.compile(r"  # noqa\b.*$", re.MULTILINE)  # for this project's linter alone


def inline(program: str, replaced: Mapping[str, str] | None = None) -> str:
    """Write a program's imports from labkit out in full.

    Docstrings that are taken over keep their first line.

    Args:
        program: Python source that imports names from labkit's modules.
        replaced: name -> the source that stands for it, where labkit's own cannot be taken,
            such as what reads a file beside its module.

    Returns:
        Python source that does not import labkit.

    Raises:
        ValueError: a name is not defined at the top of its module, or is two different things.
    """
    own = _Module(program)
    found = _Found(replaced or {})
    found.read_imports(own, ast.parse(program))
    first, rest = own.split()
    constants = "\n".join([first, "", *found.constants]).strip()
    parts = [f"{_write_imports(found.imports)}\n\n{constants}", *found.definitions, *rest]
    return "\n\n\n".join(parts) + "\n"


class _Module:
    """A module's source, by the names that it defines and imports."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")  # as ast counts them
        self.nodes: dict[str, ast.stmt] = {}
        self.imported: dict[str, tuple[str, str]] = {}
        self.body = ast.parse(text).body
        for node in self.body:
            for name in _defines(node):
                self.nodes[name] = node
            inner = node.body if isinstance(node, ast.If) else [node]  # if TYPE_CHECKING
            for statement in inner:
                self.imported |= _imports(statement)

    def split(self) -> tuple[str, list[str]]:
        """Split a program, without its imports, before the first function or class.

        Returns:
            The constants it starts with, and each statement from there on.
        """
        body = [node for node in self.body if not isinstance(node, ast.Import | ast.ImportFrom)]
        kinds = (ast.FunctionDef, ast.ClassDef, ast.If)
        at = next((i for i, node in enumerate(body) if isinstance(node, kinds)), len(body))
        texts = ["\n".join(self.lines[self._start(n) : n.end_lineno]) for n in body]
        return "\n".join(texts[:at]), texts[at:]

    def source(self, node: ast.stmt) -> str:
        """Write one definition: its comment, no imports, docstrings of one line."""
        lines = {i: self.lines[i] for i in range(self._start(node), node.end_lineno)}
        for inner in _walk(node):
            if isinstance(inner, ast.Import | ast.ImportFrom):
                for i in range(inner.lineno - 1, inner.end_lineno):
                    del lines[i]
                if lines.get(inner.end_lineno) == "":
                    del lines[inner.end_lineno]
            elif doc := _docstring(inner):
                for i in range(doc.lineno, doc.end_lineno):
                    del lines[i]
                first = doc.value.value.splitlines()[0]
                lines[doc.lineno - 1] = f'{" " * doc.col_offset}"""{first}"""'
        return NOQA.sub("", "\n".join(lines.values()))

    def _start(self, node: ast.stmt) -> int:
        decorators = getattr(node, "decorator_list", [])
        start = min([node.lineno, *(d.lineno for d in decorators)]) - 1
        while start and self.lines[start - 1].startswith("#"):
            start -= 1
        return start


@dataclass
class _Found:
    """What has been taken so far, in an order in which Python can run it."""

    replaced: Mapping[str, str]
    imports: set[tuple[str, str]] = field(default_factory=set)
    """(module, name), or ("module as m", "") for `import module as m`."""
    constants: list[str] = field(default_factory=list)
    definitions: list[str] = field(default_factory=list)
    origins: dict[str, str] = field(default_factory=dict)
    """Name -> the module it was taken from."""

    def read_imports(self, module: _Module, node: ast.AST) -> None:
        """Take all that the import statements inside a node name."""
        for statement in _walk(node):
            for source, name in _imports(statement).values():
                self.take_import(source, name)

    def take_import(self, source: str, name: str) -> None:
        if source.split(".")[0] == PACKAGE:
            self.take(source, name)
        else:
            self.imports.add((source, name))

    def take(self, source: str, name: str) -> None:
        """Take a definition of labkit's, after all that it needs."""
        module = _module(source)
        if name not in module.nodes and name in module.imported:
            self.take(*module.imported[name])
            return
        if self.origins.get(name, source) != source:
            raise ValueError(f"{name} must be one thing, got {self.origins[name]} and {source}")
        if name in self.origins:
            return
        if name not in module.nodes:
            raise ValueError(f"{name} must be defined at the top of {source}, got no such name")
        self.origins[name] = source
        node, text = module.nodes[name], self.replaced.get(name)
        walked = node if text is None else ast.parse(text)
        for needed in _names(walked):
            if needed in module.imported:
                self.take_import(*module.imported[needed])
            elif needed in module.nodes:
                self.take(source, needed)
        self.read_imports(module, walked)
        is_constant = isinstance(node, ast.Assign | ast.AnnAssign) and name.lstrip("_").isupper()
        (self.constants if is_constant else self.definitions).append(text or module.source(node))


@cache
def _module(name: str) -> _Module:
    # Read, not imported: some modules import torch.
    return _Module(Path(importlib.util.find_spec(name).origin).read_text(encoding="utf-8"))


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a node, but leave imports alone that may fail: `try` in front of `import fcntl`."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.Try) and isinstance(child, ast.Import | ast.ImportFrom)):
            yield from _walk(child)


def _defines(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            yield from (name.id for name in ast.walk(target) if isinstance(name, ast.Name))


def _imports(node: ast.AST) -> dict[str, tuple[str, str]]:
    """Local name -> (module, name in it); the name is empty for a whole module."""
    if isinstance(node, ast.Import):
        return {a.asname or a.name.split(".")[0]: (_as(a), "") for a in node.names}
    if isinstance(node, ast.ImportFrom) and node.module != "__future__":
        return {a.asname or a.name: (node.module, _as(a)) for a in node.names}
    return {}


def _as(alias: ast.alias) -> str:
    return f"{alias.name} as {alias.asname}" if alias.asname else alias.name


def _names(node: ast.AST) -> list[str]:
    """All names that are looked up, in the order in which they are written."""
    found = [name for name in ast.walk(node) if isinstance(name, ast.Name)]
    found.sort(key=lambda name: (name.lineno, name.col_offset))
    return list(dict.fromkeys(name.id for name in found if isinstance(name.ctx, ast.Load)))


def _docstring(node: ast.AST) -> ast.Expr | None:
    """Find a docstring of more than one line."""
    if not isinstance(node, ast.FunctionDef | ast.ClassDef) or ast.get_docstring(node) is None:
        return None
    doc = node.body[0]
    return doc if doc.end_lineno > doc.lineno else None


def _write_imports(imports: set[tuple[str, str]]) -> str:
    groups: dict[bool, list[str]] = {True: [], False: []}
    whole = sorted(module for module, name in imports if not name)
    members: dict[str, list[str]] = {}
    for module, name in sorted(imports):
        if name:
            members.setdefault(module, []).append(name)
    lines = [(module, f"import {module}") for module in whole]
    lines += [(module, f"from {module} import {', '.join(n)}") for module, n in members.items()]
    for module, line in lines:
        groups[re.match(r"\w+", module)[0] in sys.stdlib_module_names].append(line)
    future = ["from __future__ import annotations"]
    return "\n\n".join("\n".join(group) for group in (future, groups[True], groups[False]) if group)
