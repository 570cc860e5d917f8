"""The core without the packages of the lab: what works, and what says how to install them."""

import subprocess
import sys

import pytest

from labkit.install import LAB

WITHOUT = f"""
import sys

class WithoutTheLab:
    finders = sys.meta_path[:]

    def find_spec(self, name, *where):
        if name.partition(".")[0] in {[name for name in LAB if name != "torch"]}:
            return None
        return next(filter(None, (finder.find_spec(name, *where) for finder in self.finders)), None)

sys.meta_path[:] = [WithoutTheLab()]
"""
COMMAND = f"{WITHOUT}\nfrom labkit.cli import main\nsys.exit(main(sys.argv[1:]))"
INSTALL = "needs the lab: pip install 'torch-labkit[lab]' (missing: cv2, PIL, "
TRAINING = """
import torch
from torch.utils.data import DataLoader

if __name__ == "__main__":
    for _ in range(8):
        for batch in DataLoader(torch.zeros(64, 4), batch_size=4):
            batch.sum()
    print("trained")
"""


def core(*words, program=COMMAND):
    return subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)


@pytest.fixture
def training(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(TRAINING)
    monkeypatch.chdir(tmp_path)


# `make wheel` does the same in an empty environment.
@pytest.mark.long
def test_watch_compare_and_diagnose_work_without_the_lab(training):
    watched = core("watch", "--json", "seen.json", "train.py")
    assert (watched.returncode, watched.stdout) == (0, "trained\n")
    assert "waiting for data" in watched.stderr
    compared = core("compare", "seen.json", "seen.json")
    assert (compared.returncode, compared.stderr) == (0, "")
    assert "1.00 times as fast [" in compared.stdout
    found = core("diagnose", "--budget-s", "10", "--details", "train.py")
    assert found.returncode == 0, found.stderr
    assert "computing alone (batches are kept): " in found.stdout


def test_nccl_works_without_the_lab(tmp_path):
    log = tmp_path / "log"
    log.write_text("m:1:2 [0] NCCL INFO Channel 00 : 0[1] -> 1[2] via P2P/direct pointer\n")
    assert "0 → 1  P2P" in core("nccl", str(log)).stdout


@pytest.mark.parametrize("words", [["run", "preprocessing"], ["claims"]])
def test_what_needs_the_lab_says_so_in_one_line(training, words):
    refused = core(*words)
    (line,) = refused.stderr.splitlines()
    assert INSTALL in line
    assert (refused.returncode, refused.stdout) == (2, "")


def test_help_names_the_lab_that_is_missing():
    assert "pip install 'torch-labkit[lab]'" in core("--help").stdout


def test_a_public_name_of_the_lab_says_how_to_install_it():
    shown = core(program=f"{WITHOUT}\nimport labkit\nprint(labkit.watch)\nlabkit.panel")
    assert shown.stdout.startswith("<function watch")
    assert shown.stderr.splitlines()[-1].startswith(f"ImportError: labkit.panel {INSTALL}")
