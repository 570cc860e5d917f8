"""Write the outputs of the notebooks from the runs in results/examples, or check that they match.

    python -m benchmarks.notebooks             before each commit
    python -m benchmarks.notebooks --charts    `make notebooks`: the runs' charts and page first
    python -m benchmarks.notebooks --check     part of `make test`

Readers on GitHub then see charts and tables of runs that are in this repository.  Cells that look
at the reader's machine (the form, `doctor`, `diagnose`, …) keep no output, and neither do those of
an experiment that has no run there.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat

import labkit as lab
from benchmarks import frame
from labkit.claims.ledger import REFERENCE
from labkit.report.figures import write

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
ROOFLINE = "{}_roofline"


class NoRunError(Exception):
    """There is no run of an experiment in this repository."""


def reference(name: str) -> lab.Run:
    """Return an experiment's newest run in this repository."""
    run = lab.newest_run(name, REFERENCE)
    if run is None:
        raise NoRunError(name)
    return run


OF_REFERENCE = SimpleNamespace(
    experiment=lambda name, **_: name,
    run=lambda experiment, *_, **__: reference(experiment),
    roofline=lambda name, *_, **__: reference(ROOFLINE.format(name)),
    newest_run=lambda name, **_: reference(name),
)
"""What the notebooks call of labkit, on runs that are there."""


def outputs_of(source: str, names: dict[str, Any]) -> list[Any]:
    """Run a cell on the runs of this repository; return its outputs.

    Args:
        source: of the cell.
        names: of the notebook; the cell's are added.
    """
    source = source.replace("import labkit as lab\n", "")
    called = set(re.findall(r"\blab\.(\w+)", source))
    if not called <= vars(OF_REFERENCE).keys():
        return []
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    try:
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        value = last and eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    except (NoRunError, NameError):  # the second: of a run that is missing
        return []
    return [] if value is None else [nbformat.v4.new_output("execute_result", data=_data(value))]


def _data(value: Any) -> dict[str, str]:
    """Return a figure as a picture, all else as a table and its text."""
    if hasattr(value, "savefig"):
        data, _ = value._repr_mimebundle_()
        return {"image/png": data["image/png"], "text/plain": value.get_label()}
    html = getattr(value, "_repr_html_", None)
    return ({"text/html": html()} if html else {}) | {"text/plain": repr(value)}


def with_outputs(path: Path) -> nbformat.NotebookNode:
    """Return a notebook with the outputs that it should have."""
    notebook = nbformat.read(path, as_version=4)
    names: dict[str, Any] = {"lab": OF_REFERENCE}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = outputs_of(cell.source, names), None
    return notebook


def differences(committed: nbformat.NotebookNode, expected: nbformat.NotebookNode) -> list[str]:
    """Return the first lines of the cells whose outputs are not as expected."""
    return [
        one.source.partition("\n")[0]
        for one, other in zip(committed.cells, expected.cells)
        if one.cell_type == "code" and one.outputs != other.outputs
    ]


def redraw() -> None:
    """Write the charts of the runs anew, and the page of all of them.

    Of a run's charts the first is written, and others where there is a file.
    """
    for folder in lab.list_runs(REFERENCE, "*"):
        run = lab.find_run(folder)
        for kind in run.charts:
            path = folder / f"{'chart' if kind == run.charts[0] else kind}.png"
            if kind == run.charts[0] or path.exists():
                write(run.chart(kind), path)
    lab.report(results=REFERENCE, markdown=False)


def main() -> int:
    """Write or check all notebooks; return the exit status."""
    parser = frame.parser(__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--charts", action="store_true", help="redraw charts and page first")
    options = parser.parse_args()
    status = 0
    if options.charts:
        redraw()
    for path in NOTEBOOKS:
        committed, expected = nbformat.read(path, as_version=4), with_outputs(path)
        if not (changed := differences(committed, expected)):
            continue
        if options.check:
            status = 1
            print(f"{path.name}: outputs are not those of results/examples: {', '.join(changed)}; "
                  "run: make notebooks", file=sys.stderr)  # fmt: skip
        else:
            nbformat.write(expected, path)
            print(f"wrote {path.name}")
    return status


if __name__ == "__main__":
    sys.exit(main())
