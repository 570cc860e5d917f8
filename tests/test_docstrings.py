"""The examples in docstrings of what users call most run, and print what they say."""

import doctest
import importlib
import shutil
from types import SimpleNamespace

import pytest

import labkit as lab
from labkit import steady_rate
from labkit.analysis import halving, published, two_runs
from labkit.experiments import sweep
from labkit.runs import experiment

# Whose docstrings have examples: a user meets them first.
WITH_EXAMPLES = [
    lab.Experiment, lab.Settings, lab.choose, lab.compare, lab.describe_data, lab.example_loop,
    lab.experiment, lab.find_run, lab.forecast, lab.list_runs, lab.make_photos, lab.newest_run,
    lab.run, lab.claims, lab.sweep, sweep.change_all, sweep.full_only, sweep.with_published,
    experiment.as_experiment, lab.Run.table, lab.Run.charts, lab.Run.chart,
    lab.Run.share, lab.Run.save, lab.resume, lab.open_shared, lab.report, lab.doctor, lab.panel,
    published.answer, steady_rate.steady_rate,
    halving.halve, two_runs.RunComparison, lab.ThreadLoader,
]  # fmt: skip


@pytest.fixture(scope="module")
def finished(photos, tmp_path_factory):
    """A folder with photographs and a finished run of `preprocessing`."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(photos, folder / "data" / "photos")
    data = str(folder / "data" / "photos")
    small = lab.experiment(
        "preprocessing", data=data, storage="here", images=16, input_px=64, device="cpu",
        step="nothing", cache="as found", num_workers=0,
    )  # fmt: skip
    chosen = lab.choose(small, ["original", "vectorized"])
    run = lab.run(chosen, blocks=3, results=folder / "results", progress=False)
    return SimpleNamespace(folder=folder, run=run, experiment=chosen)


def name_of(function):
    """Return the dotted name, of a property that of its method."""
    return getattr(function, "fget", function).__qualname__


@pytest.mark.parametrize("function", WITH_EXAMPLES, ids=name_of)
def test_examples_print_what_they_say(function, finished, tmp_path, monkeypatch):
    folder = shutil.copytree(finished.folder, tmp_path / "examples")  # some add runs
    run = lab.find_run(folder / finished.run.folder.relative_to(finished.folder))
    monkeypatch.chdir(folder)
    function = getattr(function, "fget", function)
    module = vars(importlib.import_module(function.__module__))
    known = {"lab": lab, "run": run, "experiment": finished.experiment}
    (test,) = doctest.DocTestFinder(recurse=False).find(
        function, "example", globs={**module, **known}
    )
    assert test.examples
    output = []
    doctest.DocTestRunner().run(test, out=output.append)
    assert output == []
