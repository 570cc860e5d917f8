"""A batch that memory has no room for ends in one line that names batch_size, as a failed row."""

import os
import re
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

import labkit as lab
from labkit import machine, preflight
from labkit.room import batch_bytes, check_room, why_no_room
from labkit.settings import MODES, Settings, complete

TOO_MANY = 1 << 47  # bytes: more than a process can address


def settings(**changes):
    small = {
        "batch_size": 24, "input_px": 64, "device": "cpu", "step": "classifier",
        "preprocessor": "classification",
    }  # fmt: skip
    own = Settings(**{**small, **changes})
    return complete(own, MODES["quick"], cores=2, has_cuda=False, can_fork=True)


class Greedy(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, i):
        return np.empty(TOO_MANY, np.uint8)


def test_a_batch_is_as_large_as_its_tensors():
    assert batch_bytes(settings()) == 24 * (3 * 64 * 64 * 4 + 8 + 8)


def test_a_batch_larger_than_memory_is_refused_before_it_is_made(photos):
    check_room(settings())
    large = settings(input_px=1 << 17, data=str(photos))
    fitting = machine.memory_bytes() // (3 * 4 << 34)
    message = rf"batch_size must be at most {fitting} at input_px 131072, so that one batch fits"
    with pytest.raises(ValueError, match=message):
        check_room(large)
    verdicts = preflight.compare_work(
        {"small": settings(data=str(photos)), "large": large}, "small"
    )
    assert verdicts["small"] == ("ok", "")
    status, reason = verdicts["large"]
    assert status == "failed"
    assert re.search(
        rf"{message} into memory \(.+B\), got 24 \([45]\.\d TB\); use a smaller", reason
    )


@pytest.mark.parametrize(
    ("allocate", "said"),
    [
        (lambda: np.empty(TOO_MANY, np.uint8), "MemoryError: Unable to allocate 128. TiB"),
        (lambda: torch.empty(TOO_MANY, dtype=torch.uint8), "RuntimeError: .*allocate memory"),
        (lambda: bytearray(TOO_MANY), "MemoryError: "),
        (
            lambda: list(torch.utils.data.DataLoader(Greedy(), num_workers=1)),
            r"\(numpy\._core\._exceptions\._ArrayMemoryError: Unable to allocate",
        ),
        pytest.param(
            lambda: torch.empty(TOO_MANY, dtype=torch.uint8, device="cuda"),
            "OutOfMemoryError: CUDA out of memory",
            marks=pytest.mark.needs_cuda,
        ),
    ],
    ids=["numpy", "torch", "python", "in a loader worker", "CUDA"],
)
def test_every_librarys_way_to_say_so_names_the_batch(allocate, said):
    with pytest.raises(Exception) as raised:
        allocate()
    line = why_no_room(raised.value, settings())
    assert line.startswith("batch_size must leave room in memory, got 24 (1.2 MB a batch); use a ")
    assert re.search(said, line)
    assert "\n" not in line


def test_other_errors_are_not_blamed_on_memory():
    for error in (ValueError("image must be a JPEG"), OSError(28, "No space left on device")):
        assert why_no_room(error, settings()) == ""


# --- in a run -------------------------------------------------------------------------------


def greedy_in_trials(jpeg):
    if torch.utils.data.get_worker_info() is not None:  # preflight has no workers
        np.empty(TOO_MANY, np.uint8)
    return lab.parts.decoding.decode_opencv(jpeg)


def dies(source, settings):
    """A rival's library that was built for another processor takes its process with it."""
    os.kill(os.getpid(), signal.SIGILL)


@pytest.mark.skipif(not machine.can_fork(), reason="signals say who was killed")
def test_whoever_finds_no_room_or_is_killed_is_a_row_and_the_others_are_measured(
    photos, tmp_path, monkeypatch
):
    monkeypatch.setitem(lab.DECODERS, "greedy", greedy_in_trials)
    monkeypatch.setitem(lab.LOADERS, "illegal", dies)
    base = lab.Settings(
        data=str(photos), device="cpu", step="nothing", preprocessor="vectorized",
        cache="as found", input_px=64, batch_size=4, images=8, num_workers=1, epochs=1,
    )  # fmt: skip
    changes = {
        "good too": {"decoder": "pillow"},
        "greedy": {"decoder": "greedy"},
        "large": {"input_px": 1 << 17},
        "illegal": {"loader": "illegal"},
    }
    variants = {"good": base} | {name: replace(base, **one) for name, one in changes.items()}
    experiment = lab.Experiment("test", question="?", variants=variants, baseline="good")
    finished = lab.run(experiment, blocks=1, results=tmp_path, progress=False)
    assert finished.info["status"] == "finished"
    rows = {row.variant: row for row in lab.summarize(finished).rows}
    assert {name for name, row in rows.items() if row.status == "ok"} == {"good", "good too"}
    assert "batch_size must leave room in memory, got 4 (" in rows["greedy"].reason
    assert "batch_size must be at most 0 at input_px 131072" in rows["large"].reason
    assert rows["illegal"].reason == "the trial's process was killed by SIGILL; see worker.log"
