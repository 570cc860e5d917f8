"""Build a wheel and use it as a stranger would: in an empty environment, away from the repository.

    python -m benchmarks.wheel

First the core with torch alone, which must watch and diagnose a training and refuse all else in one
line; then the lab, which must make photographs, run an experiment and copy its notebooks.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
PIP = ["-m", "pip", "install", "--quiet", "--no-compile", "--constraint", CONSTRAINTS]
TRAINING = """
import zlib
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, i):
        packed = zlib.compress(np.random.default_rng(i).integers(0, 8, 49152, np.uint8).tobytes())
        pixels = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(3, 128, 128)
        return torch.from_numpy(pixels.astype(np.float32)), i % 10


def main():
    loader = DataLoader(Samples(), batch_size=16, num_workers=0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(49152, 10))
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    for _ in range(2):
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
"""
SMALL = ["--images=16", "--blocks=1", "--batch-size=4", "--input-px=64", "--device=cpu"]


def main() -> int:
    """Build and try the wheel; print a line per step."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "train.py").write_text(TRAINING)
        try:
            wheel = _build(place)
            python = _environment(place, wheel)
            _try_core(place)
            _run([python, *PIP, f"{wheel}[lab]"], place)
            if _run([python, "-c", "import cv2"], place, may_fail=True).returncode:
                _run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "opencv-python"], place)
                _run([python, *PIP, "opencv-python-headless"], place)
            _try_lab(place)
        except RuntimeError as failure:
            print(f"FAILED: {failure}")
            return 1
    return 0


def _build(place: Path) -> Path:
    _run([sys.executable, "-m", "build", "--wheel", "--outdir", place, ROOT], place)
    (wheel,) = place.glob("*.whl")
    names = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    packages = {name for name in names if not name.endswith(".dist-info")}
    _expect(packages == {"labkit"}, f"the wheel must hold one package, got {packages}")
    return wheel


def _environment(place: Path, wheel: Path) -> Path:
    _run([sys.executable, "-m", "venv", place / "venv"], place)
    python = place / "venv" / "bin" / "python"
    _run([python, *PIP, wheel, "torch"], place)
    return python


def _try_core(place: Path) -> None:
    labkit = place / "venv" / "bin" / "labkit"
    watched = _run([labkit, "watch", "train.py"], place)
    _expect("waiting for data" in watched.stderr, f"no verdict of watch: {watched.stderr}")
    diagnosed = _run([labkit, "diagnose", "--budget-s", "8", "--details", "train.py"], place)
    _expect("computing alone" in diagnosed.stdout, f"no details of diagnose: {diagnosed.stdout}")
    refused = _run([labkit, "run"], place, may_fail=True)
    lines = refused.stderr.splitlines()
    is_one_line = len(lines) == 1 and "pip install 'torch-labkit[lab]'" in lines[0]
    _expect(
        refused.returncode != 0 and is_one_line, f"run must be refused in one line, got {lines}"
    )


def _try_lab(place: Path) -> None:
    labkit = place / "venv" / "bin" / "labkit"
    _run([labkit, "run", "preprocessing", *SMALL], place)
    _expect(any((place / "data" / "photos").rglob("*.jpg")), "run must make photographs")
    _expect(any((place / "results").rglob("chart.png")), "run must draw a chart")
    _run([labkit, "recipe", "preprocessing", "--out", "fast.py"], place)
    trained = _run([place / "venv" / "bin" / "python", "fast.py"], place)
    _expect("images/s" in trained.stdout, "the recipe must train")
    claims = _run([labkit, "claims"], place)
    _expect("reference runs: " in claims.stdout, "claims must find the reference runs")
    _run([labkit, "notebooks", "lab"], place)
    _expect((place / "lab" / "00_start.ipynb").is_file(), "notebooks must be copied")


def _run(
    command: Sequence[str | Path], place: Path, *, may_fail: bool = False
) -> subprocess.CompletedProcess:
    start_s = time.perf_counter()
    done = subprocess.run(
        command, cwd=place, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    words = " ".join(Path(word).name for word in command[:4])
    print(f"{time.perf_counter() - start_s:6.1f} s  {words}", flush=True)
    if done.returncode and not may_fail:
        raise RuntimeError(f"{words}: {done.stderr[-2000:]}")
    return done


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RuntimeError(otherwise)


if __name__ == "__main__":
    sys.exit(main())
