"""What a command's end, a claim about the cache and the things left behind are worth."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.environments.places import Done, Place
from benchmarks.environments.residency import (
    COLD_MAX_SHARE,
    WARM_MIN_SHARE,
    held_in_memory,
    resident_share,
)

# What each command must print.
SAYS = {
    "doctor": r"^cores ",
    "prefetching": r"^saved in ",
    "storage": r"^saved in ",
    "watch": r"waiting for data [\d.]+ %",
    "diagnose": r"^The step alone",
}
TOLD_WITHIN = 0.1  # of the files' pages: some may be read or reclaimed while a command ends
GONE_WITHIN_S = 5.0
LOOK_EVERY_S = 0.5


def explanation(done: Done) -> str:
    """Return the one line in which a command says why it cannot; empty if it is not one line."""
    lines = error_lines(done)
    reasons = [line for line in lines if line.startswith("labkit: ")]
    return reasons[0] if reasons and reasons == lines[-1:] else ""


def error_lines(done: Done) -> list[str]:
    """Return what a command printed as errors, without bars, which draw over themselves."""
    lines = (line.rpartition("\r")[2].strip() for line in done.errors.splitlines())
    return [line for line in lines if line and not re.search(r"\d%\|", line)]


def judge_end(name: str, done: Done, *, may_end: bool) -> str:
    """Return the cell of a command."""
    took = f"{done.took_s:.0f} s"
    if "Traceback (most recent call last)" in done.errors:
        return f"FAILED: traceback, {last_line(done)} ({took})"
    if done.status == 0:
        if not re.search(SAYS[name], done.out + done.errors, re.MULTILINE):
            return f"FAILED: status 0 without {SAYS[name]!r} ({took})"
        return f"ok ({took})"
    if not (line := explanation(done)):
        return f"FAILED: status {done.status}, {last_line(done)} ({took})"
    if not may_end:
        return f"FAILED: it could work here, but: {line} ({took})"
    return f"one clear line: {line.removeprefix('labkit: ')} ({took})"


def last_line(done: Done) -> str:
    """Return the end of what a command printed as an error."""
    return next(reversed(error_lines(done)), "nothing on stderr")


def judge_rows(place: Place, experiment: str) -> str:
    """Return which variants a run left out or claims wrongly, for its cell."""
    folders = sorted(place.results.glob(f"{experiment}/*/run.json"))
    if not folders:
        return ""
    info = json.loads(folders[-1].read_text())
    trials = []
    with contextlib.suppress(FileNotFoundError, ValueError):  # a full disk ends within a line
        for line in folders[-1].with_name("trials.jsonl").read_text().splitlines():
            trials.append(json.loads(line))
    proofs = [trial["cache_proof"] for trial in trials if trial.get("cache_proof")]
    cold = [proof for proof in proofs if proof["wanted"] == "cold"]
    parts = []
    if not place.is_remote and not all(proof["device_read_bytes"] for proof in cold):
        parts.append("FAILED: cold claimed, and nothing came from the disk")
    for word in ("FAILED", "skipped"):
        # Reasons are not shared with others, and so stand apart.
        reasons = info[word.lower()] | info.get("local", {}).get(word.lower(), {})
        for reason in dict.fromkeys(reasons.values()):
            labels = [label for label, why in reasons.items() if why == reason]
            parts.append(f"{word}: {', '.join(labels)} ({reason})")
    return "; ".join(parts)


def judge_cache(place: Place, state: str, *, mapped: int = 0) -> str:
    """Have the lab make the photographs cold or warm, and count for ourselves.

    Args:
        place: where the lab runs.
        state: "cold" or "warm".
        mapped: how many of the photographs to map meanwhile, so that they cannot be evicted.
    """
    paths = sorted((place.work / "photos").rglob("*.jpg"))
    words = ("-m", "benchmarks.environments.residency", "photos", state)
    with held_in_memory(paths[:mapped]):
        done = place.run(*words, timeout_s=120.0)
        share = resident_share(paths)
    try:
        claim = json.loads(done.out)
    except ValueError:
        return f"FAILED: {last_line(done)}"
    counted = f"{share:.1%} in memory"
    if "skip" in claim:
        claimed_percent = re.search(r"([\d.]+) % of the files' pages are in memory", claim["skip"])
        is_false = (
            claimed_percent is not None
            and abs(float(claimed_percent[1]) / 100 - share) > TOLD_WITHIN
        )
        return f"{'FAILED: ' * is_false}refused: {counted} ({claim['skip']})"
    if claim["share"] is None:
        return f"not claimed: {counted}"
    is_true = share <= COLD_MAX_SHARE if state == "cold" else share >= WARM_MIN_SHARE
    shares = f"{counted}, {claim['share']:.1%} by {claim['by']}"
    return f"true: {shares}" if is_true else f"FAILED: claimed, but {shares}"


# --- what is left -------------------------------------------------------------------------------


def mounts() -> set[str]:
    """List what is mounted for this process."""
    return set(Path("/proc/self/mounts").read_text().splitlines())


def loop_devices() -> dict[str, bool]:
    """List loop devices: name and file -> whether this process sees that file.

    A file that nobody sees any more was in an environment that has ended; one that is seen outside
    is another program's.
    """
    words = ["losetup", "--list", "--noheadings", "--raw", "--output", "NAME,BACK-FILE"]
    lines = subprocess.run(words, capture_output=True, text=True).stdout.splitlines()
    return {line: Path(line.partition(" ")[2]).exists() for line in lines}


def wait_for_none(look: Callable[[], Iterable[str]]) -> list[str]:
    """Look for what should be gone, or be gone soon; return what stays."""
    deadline_s = time.monotonic() + GONE_WITHIN_S
    while (left := sorted(look())) and time.monotonic() < deadline_s:
        time.sleep(LOOK_EVERY_S)
    return left


def files_left(place: Place) -> list[str]:
    """List temporary files of the lab."""
    folders = ("/var/tmp", "/dev/shm", place.environ["TMPDIR"])
    paths = [path for folder in folders for path in Path(folder).iterdir()]
    # torch makes a folder for its compiler as soon as it is imported in full.
    return [str(path) for path in paths if not path.name.startswith("torchinductor_")]
