"""`labkit diagnose module:function` refuses in one line what it cannot use."""

import pytest

from labkit.cli import load_target, main

MODULE = """
import torch

loader = [torch.ones(2, 1)] * 3


def pair():
    return loader, print


def named():
    return {"loader": loader, "step": print, "files": ["a.jpg"]}


def a_list():
    return [loader, print]


def one_more():
    return {"loader": loader, "step": print, "schedule": 1}


def one_less():
    return {"loader": loader}


def no_batches():
    return [], print
"""


@pytest.fixture
def train_module(tmp_path, monkeypatch):
    """A module of the user's own, in the working directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("own_training.py", "own-training.py"):
        (tmp_path / name).write_text(MODULE)
    (tmp_path / "own_broken.py").write_text("import nothing_of_that_name\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_training"


def test_a_pair_and_a_dict_name_loader_and_step(train_module):
    assert set(load_target("own_training:pair")) == {"loader", "step"}
    named = load_target("own-training:named")
    assert (named["step"], named["files"]) == (print, ["a.jpg"])
    assert len(named["loader"]) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_training", "got 'own_training' (module 'own_training' has no attribute ''); such as"),
        ("sub/own.py:pair", "target must be module:function, got 'sub/own.py:pair' ("),
        ("own_training:pairs", "(module 'own_training' has no attribute 'pairs'); such as"),
        ("own_broken:pair", "got 'own_broken:pair' (No module named 'nothing_of_that_name')"),
        ("own_training:a_list", "own_training:a_list must return (loader, step), or a dict of"),
        ("own_training:one_more", "model and optimizer, got {'loader': "),
        ("own_training:one_less", "model and optimizer, got {'loader': "),
    ],
)
def test_a_target_that_cannot_work_is_one_line(train_module, capsys, name, message):
    assert main(["diagnose", name]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line


def test_a_loop_that_broke_off_is_told_of(train_module, capsys):
    assert main(["diagnose", "own_training:no_batches"]) == 1
    said = capsys.readouterr().out
    assert "Diagnosis stopped: loader must yield at least one batch" in said
    assert "of every arm in random order" not in said
    assert main(["diagnose", "own_training:no_batches", "--details"]) == 1
    assert "0 blocks of every arm in random order" in capsys.readouterr().out
