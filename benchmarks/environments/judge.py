"""What a command's end, a claim about the cache and the things left behind are worth."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import time
from pathlib import Path

from benchmarks.environments.places import Done, Place
from benchmarks.environments.residency import COLD_MAX_SHARE, WARM_MIN_SHARE, resident_share

# What each command must print.
SAYS = {
    "doctor": r"^cores ",
    "prefetching": r"^saved in ",
    "storage": r"^saved in ",
    "watch": r"waiting for data [\d.]+ %",
    "diagnose": r"^The step alone",
}
GONE_WITHIN_S = 30.0  # other programs' loop devices and control groups come and go
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
    cold = [p for p in proofs if p["wanted"] == "cold" and p["resident_share_before"] is not None]
    parts = []
    if not place.is_remote and any(proof["device_read_bytes"] == 0 for proof in cold):
        parts.append("FAILED: cold claimed, and nothing came from the disk")
    for word in ("FAILED", "skipped"):
        for reason in dict.fromkeys(info[word.lower()].values()):
            labels = [label for label, why in info[word.lower()].items() if why == reason]
            parts.append(f"{word}: {', '.join(labels)} ({reason})")
    return "; ".join(parts)


def judge_cache(place: Place, state: str) -> str:
    """Have the lab make the photographs cold or warm, and count for ourselves."""
    words = ("-m", "benchmarks.environments.residency", "photos", state)
    done = place.run(*words, timeout_s=120.0)
    try:
        claim = json.loads(done.out)
    except ValueError:
        return f"FAILED: {last_line(done)}"
    share = resident_share(sorted((place.work / "photos").rglob("*.jpg")))
    counted = f"{share:.1%} in memory"
    if "skip" in claim:
        return f"refused ({claim['skip']}); {counted}"
    if claim["share"] is None:
        return f"not claimed; {counted}"
    is_true = share <= COLD_MAX_SHARE if state == "cold" else share >= WARM_MIN_SHARE
    said = f"{claim['share']:.1%} by {claim['by']}, {counted}"
    return f"true ({said})" if is_true else f"FAILED: claimed {said}"


def things_there() -> set[str]:
    """List mounts, loop devices and control groups as this process sees them."""
    mounts = [line.split()[:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    loops = subprocess.run(
        ["losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE"],
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    groups = Path("/sys/fs/cgroup").rglob("labkit*")
    return {
        *(f"mount {' '.join(words)}" for words in mounts),
        *(f"loop device {' '.join(line.split())}" for line in loops),
        *(f"control group {path}" for path in groups if path.is_dir()),
    }


def left_since(before: set[str]) -> list[str]:
    """List what has been there since, after a while for what is just being removed."""
    deadline_s = time.monotonic() + GONE_WITHIN_S
    while (left := things_there() - before) and time.monotonic() < deadline_s:
        time.sleep(LOOK_EVERY_S)
    return sorted(left)


def files_left(place: Place) -> list[str]:
    """List temporary files of the lab."""
    folders = (Path("/var/tmp"), Path(place.environ["TMPDIR"]))
    found = [path for folder in folders for path in folder.iterdir()]
    found += Path("/dev/shm").glob("labkit*")
    # torch makes a folder for its compiler as soon as it is imported in full.
    return [str(path) for path in found if not path.name.startswith("torchinductor_")]
