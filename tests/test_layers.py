"""The layout: torch comes late, and the names of parts are resolved in one place.

That imports point down is checked by `lint-imports`; its contracts are in pyproject.toml.
"""

import ast
import subprocess
import sys
from pathlib import Path

from labkit.resolve import TABLES

LABKIT = Path(__file__).parent.parent / "labkit"

MODULES = sorted(LABKIT.rglob("*.py"))


def name_of(path):
    return path.relative_to(LABKIT).as_posix()


def own_layer(path):
    return path.relative_to(LABKIT).parts[0].removesuffix(".py")


def test_importing_labkit_imports_no_heavy_library():
    heavy = ["torch", "pandas", "matplotlib", "scipy", "cv2", "PIL", "ipywidgets", "pyinstrument"]
    program = f"import sys, labkit; print([m for m in {heavy} if m in sys.modules])"
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "[]"


# --- names are resolved once -----------------------------------------------------------------


def names_a_part(node):
    """Whether an expression is a setting that names a part: settings.loader, row["loader"]."""
    if isinstance(node, ast.Attribute):
        holder = node.value.attr if isinstance(node.value, ast.Attribute) else None
        holder = node.value.id if isinstance(node.value, ast.Name) else holder
        holder = "[]" if isinstance(node.value, ast.Subscript) else holder
        return node.attr in TABLES and holder not in (None, "self", "parts")
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value in TABLES
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        first = node.args[0]
        asks = node.func.attr in ("get", "startswith", "endswith")
        if node.func.attr == "get" and asks:
            return isinstance(first, ast.Constant) and first.value in TABLES
        return asks and names_a_part(node.func.value)
    return False


def is_name(node):
    """Whether an expression is the name of a part, or a constant that holds some."""
    if isinstance(node, ast.Name | ast.Attribute):
        return (node.id if isinstance(node, ast.Name) else node.attr).isupper()
    return isinstance(node, ast.Tuple | ast.Set | ast.List) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def comparisons(path):
    """Lines that compare a setting with the name of a part."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(names_a_part, sides)) and any(map(is_name, sides)):
                yield f"{name_of(path)}:{node.lineno} {ast.unparse(node)}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("startswith", "endswith") and names_a_part(node.func.value):
                yield f"{name_of(path)}:{node.lineno} {ast.unparse(node)}"


def test_no_setting_is_compared_with_a_parts_name_but_where_names_are_resolved():
    allowed = {"resolve", "parts", "experiments"}
    found = [
        line for path in MODULES if own_layer(path) not in allowed for line in comparisons(path)
    ]
    assert found == []
