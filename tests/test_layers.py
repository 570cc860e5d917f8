"""The layout holds: imports point down, parts never import each other, torch comes late."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

LABKIT = Path(__file__).parent.parent / "labkit"

# Lowest first; a module may import only from layers above it in this list.
LAYERS = [
    ["local"],
    ["settings", "contracts", "units", "jpeg", "trial", "progress", "procfs", "pagecache", "frame"],
    ["files"],
    ["places"],
    ["clock", "helper", "render"],
    ["shared_memory"],
    ["media", "gpu", "gpu_watch", "disturbance", "usage"],
    ["machine"],
    ["origin"],
    ["parts"],
    ["tables"],
    ["stored", "source", "staging"],
    ["packs"],
    ["pipeline"],
    ["callbacks"],
    ["old_operations"],
    ["timing", "results", "statistics"],
    ["counted", "equal_work"],
    ["summary"],
    ["plan", "forecast", "winner"],
    ["row_words", "block_ratios"],
    ["captions"],
    ["preflight", "calibration", "batch_search", "reads", "operation_trials"],
    ["worker"],
    ["launcher"],
    ["underway"],
    ["self_checks"],
    ["preparation"],
    ["runner"],
    ["experiment"],
    [
        "in_depth",
        "in_depth_loading",
        "in_depth_rivals",
        "in_depth_bottlenecks",
        "in_depth_callbacks",
        "in_depth_training",
        "operations",
        "tuning",
        "largest_batch",
        "catalog",
        "claim_answers",
        "claims",
        "disputes",
        "diagnosis",
        "example",
    ],
    ["recipe"],
    ["savings", "predictions", "findings", "costs", "reproduce", "report_words"],
    ["figures"],
    ["row_figure"],
    ["charts", "epoch_chart", "dial_chart", "timeline_chart"],
    ["side_by_side"],
    ["report"],
    ["page"],
    ["notebook"],
    ["reports", "share"],
    ["job", "choices", "exports"],
    ["panel_views"],
    ["panel_parts", "panel_form", "panel_history"],
    ["panel_widget"],
    ["panel"],
    ["__init__"],
    ["commands"],
    ["cli"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
PARTS = {"storage", "packing", "decoding", "preprocessing", "loading", "prefetching", "devices"}
PARTS |= {"training", "operations"}
MODULES = sorted(LABKIT.rglob("*.py"))


def imported(path):
    """Every labkit module that a file imports, wherever in it the import stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("labkit"):
            if node.module in ("labkit", "labkit.parts"):
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
            else:
                found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("labkit")}
    return found


def top(module):
    """labkit.parts.decoding -> parts; labkit.run (a public name) -> __init__."""
    words = module.split(".")
    return words[1] if len(words) > 1 and words[1] in LEVEL else "__init__"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(LABKIT)))
def test_imports_point_down(path):
    own = path.relative_to(LABKIT).parts[0].removesuffix(".py")
    for module in imported(path):
        if own != "parts" or top(module) != "parts":
            # Neighbours in one layer may use each other, but never in a circle (Python refuses).
            assert LEVEL[top(module)] <= LEVEL[own], f"{path.name} imports {module}"


@pytest.mark.parametrize(
    "path", sorted((LABKIT / "parts").rglob("*.py")), ids=lambda path: path.name
)
def test_parts_never_import_each_other(path):
    own = path.relative_to(LABKIT / "parts").parts[0].removesuffix(".py")
    others = {
        module.split(".")[2] for module in imported(path) if module.startswith("labkit.parts.")
    }
    assert others - {own} == set()


def test_every_module_has_a_layer():
    names = {path.relative_to(LABKIT).parts[0].removesuffix(".py") for path in MODULES}
    assert names <= set(LEVEL)
    parts = {p.name.removesuffix(".py") for p in (LABKIT / "parts").iterdir()}
    assert parts - {"__init__", "__pycache__"} == PARTS


def test_importing_labkit_imports_no_heavy_library():
    heavy = ["torch", "pandas", "matplotlib", "scipy", "cv2", "PIL", "ipywidgets", "pyinstrument"]
    program = f"import sys, labkit; print([m for m in {heavy} if m in sys.modules])"
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "[]"
