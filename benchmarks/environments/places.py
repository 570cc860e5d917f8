"""The environments: what each one mounts, limits or takes away, and where commands run in it.

    scratch folder ─ loop device, tmpfs, overlay, FUSE ─▶ top/ ─▶ work/: photos, train.py, results

Everything is made inside a mount namespace of its own, so that mounts end with its last process.
Control groups and servers are undone by an ExitStack, also after an error.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
LOOK_EVERY_S = 0.05  # between two looks at what a command has done
NOBODY, UNNAMED = 65534, 54321  # user ids: Debian's nobody, and one without an entry in passwd
SHARED_MEMORY_BYTES = 64 << 20  # what Docker gives a container
# The lab's processes take up to 800 MB, without page cache; 60 copies of the photographs 1.2 GB.
MEMORY_LIMIT_BYTES, COPIES = 1000 << 20, 60
GROUP = "labkit-environment-{}"  # of the process that makes it


class Needs(Exception):  # noqa: N818 - no error: the row says what is missing
    """This machine cannot make the environment; the text says what it would need."""


@dataclass
class Place:
    """Where and how commands run."""

    work: Path
    """The working folder; on what the environment is about."""
    results: Path
    environ: dict[str, str]
    prefix: list[str] = field(default_factory=list)
    """Words before each command, such as those that drop a capability."""
    is_remote: bool = False
    """Whether reading files fetches nothing from a device of this machine."""

    def run(self, *words: str, timeout_s: float) -> Done:
        """Run `python WORDS` to its end."""
        started_s = time.monotonic()
        process = subprocess.Popen(
            [*self.prefix, sys.executable, *words],
            cwd=self.work,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            out, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            out, errors = process.communicate()
            errors += f"\nit did not end within {timeout_s:.0f} s"
        except BaseException:  # cancelled
            os.killpg(process.pid, 9)
            process.wait()
            raise
        return Done(process.returncode, out, errors, time.monotonic() - started_s)

    def labkit(self, *words: str, timeout_s: float = 300.0) -> Done:
        """Run `labkit WORDS`."""
        return self.run("-m", "labkit", *words, timeout_s=timeout_s)


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    status: int
    out: str
    errors: str
    took_s: float


@dataclass(frozen=True, kw_only=True)
class Environment:
    """One row of the table."""

    about: str
    make: Callable[[ExitStack, Path, Path], Place]
    """Called with a stack, an empty folder on a disk, and photographs to copy."""
    may_end: tuple[str, ...] = ()
    """Commands that cannot work here, and so end in one line that says why."""
    calibrates: bool = False
    """Whether the runs measure the speed of the simulated GPU, instead of being given one."""
    check: Callable[[Place, dict[str, Done]], str] = lambda place, done: ""
    """Returns what else is wrong after all commands; empty: nothing."""


# --- steps ----------------------------------------------------------------------------------


def run_tool(*words: object) -> str:
    """Run a tool of the system.

    Raises:
        Needs: it is missing, or refuses.
    """
    try:
        done = subprocess.run([*map(str, words)], capture_output=True, text=True)
    except FileNotFoundError:
        raise Needs(f"needs {words[0]}") from None
    if done.returncode:
        raise Needs(f"needs {words[0]}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def mount(*words: object) -> None:
    """Mount something in this process's mount namespace."""
    run_tool("mount", *words)


def make_loop(folder: Path, name: str, size: str) -> Path:
    """Mount a new ext4 file system; its loop device goes with the mount."""
    image, point = folder / f"{name}.img", folder / name
    point.mkdir()
    with image.open("xb") as file:
        file.truncate(int(size.removesuffix("M")) << 20)
    run_tool("mkfs.ext4", "-q", "-F", "-m", 0, image)
    mount("-o", "loop,noatime", image, point)
    return point


def make_tmpfs(point: Path, *options: str) -> Path:
    """Mount a tmpfs."""
    point.mkdir(exist_ok=True)
    mount("-t", "tmpfs", "-o", ",".join(options) or "rw", "tmpfs", point)
    return point


def make_read_only(folder: Path) -> None:
    """Refuse all writing to a folder, root's too."""
    mount("--bind", folder, folder)
    mount("-o", "remount,bind,ro", folder)


def copy_photos(photos: Path, target: Path) -> None:
    """Copy photographs without leaving them in memory."""
    shutil.copytree(photos, target)
    forget(target)


def forget(folder: Path) -> None:
    """Drop the files of a folder from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def furnish(stack: ExitStack, top: Path, photos: Path | None, *, user: int = 0) -> Place:
    """Make the folders that commands use.

    Args:
        stack: takes down what a killed command leaves.
        top: an empty folder that holds them all.
        photos: what to copy; None: they are there already.
        user: the id of the user that the folders belong to; the photographs stay root's.
    """
    work = top / "work"
    for folder in (work, top / "home", top / "tmp", top / "var-tmp", work / "results"):
        folder.mkdir(exist_ok=True)
        os.chown(folder, user, user)
    shutil.copy(Path(__file__).with_name("train.py"), work)
    # Of a run that was killed; one that ended by itself has removed it.
    take_down = "from labkit.parts.storage import slow_disk; slow_disk.down()"
    stack.callback(subprocess.run, [sys.executable, "-c", take_down], cwd=CHECKOUT, check=False)
    if photos is not None:
        copy_photos(photos, work / "photos")
    # The lab's throttled disk and its copies in memory lie there, whatever TMPDIR says.
    mount("--bind", top / "var-tmp", "/var/tmp")
    make_tmpfs(Path("/dev/shm"), "mode=1777")
    environ = {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "HOME": str(top / "home"),
        "TMPDIR": str(top / "tmp"),
        "PYTHONPATH": str(CHECKOUT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return Place(work=work, results=work / "results", environ=environ)


def let_others_read(folder: Path) -> None:
    """Show this program's files to users that may not look into root's folders."""
    # As in a user's own installation, which is not below /root.
    trees = {Path(p).resolve() for p in (sys.base_prefix, sys.prefix, CHECKOUT)}
    closed = {
        tree: parent
        for tree in trees
        for parent in reversed(tree.parents)
        if not parent.stat().st_mode & 0o001
    }
    for number, tree in enumerate(closed):
        copy = folder / f"tree-{number}"
        copy.mkdir()
        mount("--bind", tree, copy)
    for parent in set(closed.values()):
        make_tmpfs(parent, "mode=755")
    for number, tree in enumerate(closed):
        tree.mkdir(parents=True)
        mount("--bind", folder / f"tree-{number}", tree)


def make_group(stack: ExitStack, controller: str, limits: dict[str, str]) -> Path:
    """Make a control group with a limit, and one inside it without.

    Args:
        stack: removes both.
        controller: "cpu" or "memory".
        limits: file -> content, of versions 1 and 2; those that are not there are left out.

    Returns:
        The inner group.
    """
    version_1 = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    # Version 1: below the own group. Version 2: below the root, as a group with processes hands
    # no controllers down.
    for _, point, kind, options, *_ in version_1:
        if kind == "cgroup" and controller in options.split(","):
            lines = Path("/proc/self/cgroup").read_text().splitlines()
            own = next(x for _, names, x in (y.split(":", 2) for y in lines) if controller in names)
            above = Path(point, own.lstrip("/"))
            break
        if kind == "cgroup2" and controller in Path(point, "cgroup.controllers").read_text():
            above = Path(point)
            with contextlib.suppress(OSError):
                (above / "cgroup.subtree_control").write_text(f"+{controller}")
            break
    else:
        raise Needs(f"needs the control groups of {controller}")
    outer = above / GROUP.format(os.getpid())
    for group in (outer, outer / "inner"):
        try:
            group.mkdir()
        except OSError as error:
            raise Needs(f"needs control groups that can be written: {error}") from error
        stack.callback(remove_group, group)
    written = [name for name in limits if (outer / name).exists()]
    if not written:
        raise Needs(f"needs the controller {controller}, which is not handed down here")
    for name in written:
        (outer / name).write_text(limits[name])
    return outer / "inner"


def remove_group(group: Path) -> None:
    """Remove a control group whose processes have ended, or are about to."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(LOOK_EVERY_S)
    group.rmdir()


def joined(group: Path) -> list[str]:
    """Return the words that run a command in a control group."""
    return ["sh", "-c", f'echo $$ > "{group}/cgroup.procs" && exec "$@"', "sh"]


# --- environments ---------------------------------------------------------------------------


def on_overlay(stack: ExitStack, folder: Path, photos: Path, *, layer: str) -> Place:
    """Work on overlayfs, with the photographs in one of its layers."""
    lower, upper = make_loop(folder, "lower", "600M"), make_loop(folder, "upper", "1200M")
    (lower / "work").mkdir()
    if layer == "lower":
        copy_photos(photos, lower / "work" / "photos")
    for name in ("files", "changes"):
        (upper / name).mkdir()
    top = folder / "top"
    top.mkdir()
    layers = f"lowerdir={lower},upperdir={upper}/files,workdir={upper}/changes"
    mount("-t", "overlay", "-o", layers, "overlay", top)
    return furnish(stack, top, photos if layer == "upper" else None)


def on_ext4(stack: ExitStack, folder: Path, photos: Path) -> Place:
    """Work on a file system of its own."""
    return furnish(stack, make_loop(folder, "top", "1200M"), photos)


def on_tmpfs(stack: ExitStack, folder: Path, photos: Path) -> Place:
    """Work in memory."""
    return furnish(stack, make_tmpfs(folder / "top", "size=2g"), photos)


def on_network(stack: ExitStack, folder: Path, photos: Path) -> Place:
    """Work on a file system with a network's delays."""
    if importlib.util.find_spec("mfusepy") is None:
        raise Needs("needs FUSE: pip install mfusepy, apt-get install fuse3 libfuse3-3")
    server = folder / "server"
    (server / "work").mkdir(parents=True)
    copy_photos(photos, server / "work" / "photos")
    place = furnish(stack, folder, None)
    point = folder / "far"
    point.mkdir()
    command = ["-m", "benchmarks.environments.slow_files", str(server / "work"), str(point)]
    serving = subprocess.Popen([sys.executable, *command], cwd=CHECKOUT)
    stack.callback(serving.wait, 10)
    stack.callback(serving.terminate)
    stack.callback(subprocess.run, ["umount", "--lazy", point], check=False)
    deadline_s = time.monotonic() + 20
    while not point.is_mount():
        if serving.poll() is not None or time.monotonic() > deadline_s:
            raise Needs("needs FUSE: it could not be mounted")
        time.sleep(LOOK_EVERY_S)
    shutil.copy(Path(__file__).with_name("train.py"), point)
    place.work, place.results, place.is_remote = point, point / "results", True
    return place


def on_disk(stack: ExitStack, folder: Path, photos: Path, **how: int) -> Place:
    """Work where this machine keeps its temporary files."""
    top = folder / "top"
    top.mkdir()
    return furnish(stack, top, photos, **how)


def with_little_shared_memory(stack: ExitStack, folder: Path, photos: Path) -> Place:
    """Give /dev/shm what Docker gives it."""
    place = on_disk(stack, folder, photos)
    make_tmpfs(Path("/dev/shm"), f"size={SHARED_MEMORY_BYTES}", "mode=1777")
    return place


def without_sys_admin(stack: ExitStack, folder: Path, photos: Path) -> Place:
    """Run as root without the capability that mounts."""
    place = on_disk(stack, folder, photos)
    place.prefix = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"]
    run_tool(*place.prefix, "true")
    return place


def as_user(stack: ExitStack, folder: Path, photos: Path, *, user: int) -> Place:
    """Run as a user who is not root; the photographs are root's."""
    place = on_disk(stack, folder, photos, user=user)
    let_others_read(folder)
    place.prefix = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    place.prefix += ["--bounding-set", "-all", "--inh-caps", "-all"]
    run_tool(*place.prefix, sys.executable, "-c", "import torch")
    return place


def with_one_core(stack: ExitStack, folder: Path, photos: Path) -> Place:
    """Limit the time of all cores to that of one."""
    limits = {"cpu.cfs_quota_us": "100000", "cpu.max": "100000 100000"}
    group = make_group(stack, "cpu", limits)
    place = on_disk(stack, folder, photos)
    place.prefix = joined(group)
    return place


def with_little_memory(stack: ExitStack, folder: Path, photos: Path) -> Place:
    """Limit memory, page cache included, to less than the photographs take."""
    names = ("memory.limit_in_bytes", "memory.max")
    group = make_group(stack, "memory", dict.fromkeys(names, str(MEMORY_LIMIT_BYTES)))
    place = on_disk(stack, folder, None)
    for number in range(COPIES):
        shutil.copytree(photos / "images", place.work / "photos" / f"{number:03}")
        forget(place.work / "photos" / f"{number:03}")
    place.prefix = joined(group)
    return place


def with_read_only_home(stack: ExitStack, folder: Path, photos: Path) -> Place:
    """Refuse writing to the home folder."""
    place = on_disk(stack, folder, photos)
    make_read_only(Path(place.environ["HOME"]))
    return place


def without_home(stack: ExitStack, folder: Path, photos: Path) -> Place:
    """Run as a user without a name and a home folder, as `docker run --user` does."""
    place = as_user(stack, folder, photos, user=UNNAMED)
    del place.environ["HOME"]
    return place


def without_sys(stack: ExitStack, folder: Path, photos: Path) -> Place:
    """Cover /sys."""
    place = on_disk(stack, folder, photos)
    make_tmpfs(Path("/sys"), "ro")
    return place


def with_full_disk(stack: ExitStack, folder: Path, photos: Path) -> Place:
    """Fill the disk that holds the results as soon as a run has saved its first trial."""
    place = on_disk(stack, folder, photos)
    place.results = make_loop(folder, "small", "16M")
    ended = threading.Event()

    def fill() -> None:
        while not ended.wait(LOOK_EVERY_S):
            if any(path.stat().st_size for path in place.results.glob("*/*/trials.jsonl")):
                with contextlib.suppress(OSError), (place.results / "ballast").open("wb") as file:
                    while True:
                        file.write(b"x" * 1024)
                        file.flush()
                return

    filling = threading.Thread(target=fill)
    filling.start()
    stack.callback(filling.join)
    stack.callback(ended.set)
    return place


def with_read_only_results(stack: ExitStack, folder: Path, photos: Path) -> Place:
    """Refuse writing to the results."""
    place = on_disk(stack, folder, photos)
    make_read_only(place.results)
    return place


# --- what else must hold --------------------------------------------------------------------


def check_one_core(place: Place, done: dict[str, Done]) -> str:
    """Check that one core is what the lab works with."""
    from labkit.runs.store import list_runs, load_run

    if "1 × " not in done["doctor"].out:
        return "doctor does not show one core"
    if "cores in use, of 1:" not in done["watch"].errors:
        return "watch does not show one core"
    for folder in list_runs(place.results):
        run = load_run(folder)
        if run.info.provenance.cores != 1:
            return f"{folder.parent.name}: {run.info.provenance.cores} cores are recorded"
    return ""


def check_shared_memory(place: Place, done: dict[str, Done]) -> str:
    """Check that what the runs advise helps, where batches did not fit."""
    if not done["prefetching"].status:
        return ""
    advice = re.search(r"use num_workers (\d+) or", done["prefetching"].errors)
    if advice is None:
        return f"no number of workers is advised: {done['prefetching'].errors[-300:]}"
    words = ("run", "prefetching", "--data", "photos", "--blocks", "1", "--gpu-images-per-s", "100")
    results = ("--results", str(place.work / "as-advised"))
    fewer = place.labkit(*words, *results, "--num-workers", advice[1])
    return f"as advised: {fewer.errors[-300:]}" if fewer.status else ""


def check_full_disk(place: Place, done: dict[str, Done]) -> str:
    """Check that a run is completed once there is room, with all rows that it had."""
    from labkit.runs.store import list_runs, load_run

    (place.results / "ballast").unlink()
    runs = {folder: load_run(folder).trials for folder in list_runs(place.results)}
    if not runs:
        return "there is no run to complete"
    for folder, before in runs.items():
        resumed = place.labkit("run", "--resume", str(folder), "--results", str(place.results))
        run = load_run(folder)
        if resumed.status or run.info.status != "finished":
            return f"{folder.parent.name} cannot be completed: {resumed.errors[-500:]}"
        if run.trials[: len(before)] != before:
            return f"{folder.parent.name} lost rows"
    return ""


ENVIRONMENTS = {
    "overlay-lower": Environment(
        about="overlayfs, the photographs in the lower layer",
        calibrates=True,
        make=partial(on_overlay, layer="lower"),
    ),
    "overlay-upper": Environment(
        about="overlayfs, the photographs in the upper layer",
        make=partial(on_overlay, layer="upper"),
    ),
    "shm-64mb": Environment(
        about="64 MB of /dev/shm, as in a container",
        make=with_little_shared_memory,
        may_end=("prefetching", "storage"),
        check=check_shared_memory,
    ),
    "no-sys-admin": Environment(about="root without CAP_SYS_ADMIN", make=without_sys_admin),
    "user": Environment(
        about="a user who is not root; the photographs are root's",
        make=partial(as_user, user=NOBODY),
    ),
    "quota-1-core": Environment(
        about="a control group with one core's time",
        make=with_one_core,
        calibrates=True,
        check=check_one_core,
    ),
    "memory-limit": Environment(
        about="a control group with less memory than the photographs take",
        make=with_little_memory,
    ),
    "ext4": Environment(about="ext4 on a loop device", make=on_ext4),
    "tmpfs": Environment(
        about="the working folder in memory", make=on_tmpfs, may_end=("prefetching",)
    ),
    "network": Environment(about="a file system with a network's delays", make=on_network),
    "read-only-home": Environment(about="a home folder without writing", make=with_read_only_home),
    "no-home": Environment(about="a user without a name, a home and HOME", make=without_home),
    "no-sys": Environment(about="nothing in /sys", make=without_sys),
    "full-disk": Environment(
        about="the results' disk becomes full in the first run",
        make=with_full_disk,
        may_end=("prefetching", "storage"),
        check=check_full_disk,
    ),
    "read-only-results": Environment(
        about="results that cannot be written",
        make=with_read_only_results,
        may_end=("prefetching", "storage"),
    ),
}
