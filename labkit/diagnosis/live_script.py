"""Run a training script until its training is diagnosed, with the processes that it starts.

diagnose_script ─▶ the script itself            ─┐
─▶ a process that it starts      ├─▶ prints the diagnosis, ends the training
(startup/sitecustomize.py)   ─┘
"""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Sequence
from concurrent.futures.thread import _python_exit
from contextlib import ExitStack, suppress
from multiprocessing import process
from multiprocessing.util import Finalize, register_after_fork
from pathlib import Path
from typing import Any

from labkit import files, units
from labkit.diagnosis.arms import Loop
from labkit.diagnosis.diagnose import Diagnosis
from labkit.diagnosis.live import LiveDiagnosis, supplying
from labkit.diagnosis.loader_search import Tuned
from labkit.diagnosis.loaders import end_process
from labkit.diagnosis.script import (
    Program,
    Termination,
    end_by_signal,
    execute,
    show_as_without,
    start_children_with,
)  # fmt: skip
from labkit.diagnosis.tune import tune_live
from labkit.diagnosis.watch import rank_of_launcher, say
from labkit.language import Text, is_chinese, shown

VARIABLE = "LABKIT_DIAGNOSE"  # of the environment: what started processes are to do, as JSON
TERMINATED = "the script was terminated"


class _ScriptDiagnosis(LiveDiagnosis):
    """The diagnosis of a script, which is printed and written as it was asked for.

    Args:
        request: of `diagnose_script`, as JSON.
        must_train: as of `LiveDiagnosis`.
    """

    def __init__(self, request: dict[str, Any], *, must_train: bool = False) -> None:
        is_quiet = bool(rank_of_launcher())
        super().__init__(budget_s=request["budget_s"], progress=not is_quiet, must_train=must_train)
        self._request = request

    @property
    def _is_owner(self) -> bool:
        return self._request["owner"] == os.getpid()  # not in a fork of it

    def begin(self) -> None:
        """Show what was measured where SIGTERM comes."""
        Termination(lambda: self.end_by_signal(TERMINATED, self._terminate)).install()

    def measure(self, loop: Loop) -> Diagnosis | Tuned:
        """Return the diagnosis, or the loader's best arguments."""
        if self._request["tuned"]:
            return tune_live(loop, budget_s=self._budget_s, progress=self._progress)
        return super().measure(loop)

    def show(self, diagnosis: Diagnosis | Tuned) -> None:
        """Print and write the diagnosis."""
        details = f"\n\n{diagnosis.details()}" if self._request["details"] else ""
        sys.stdout.write(f"{diagnosis}{details}\n")
        sys.stdout.flush()
        if not self._is_owner:
            self._leave(is_diagnosed=True, why_not=diagnosis.broken)
        if self._request["json"]:
            try:
                with files.whole(Path(self._request["json"])) as part:
                    part.write_text(json.dumps(diagnosis.as_json(), indent=1), encoding="utf-8")
            except OSError as error:
                say(f"--json: {error}")

    def insist(self) -> None:
        """End the process."""
        say("The script catches what ends it, and goes on: its process is ended.")
        self._remove_folder()
        end_process(0)

    def leave_reason(self) -> None:
        """Have the first process print why the training of this one was not diagnosed."""
        why_not = self.why_not()
        if why_not and self.has_trained():
            self._leave(is_diagnosed=False, why_not=why_not)

    def _leave(self, *, is_diagnosed: bool, why_not: str) -> None:
        """Leave what became of the diagnosis in this process where the first process finds it."""
        known = {"is_diagnosed": is_diagnosed, "why_not": why_not}
        path = Path(self._request["folder"], f"{os.getpid()}.json")
        with suppress(OSError), files.whole(path) as part:
            part.write_text(json.dumps(known), encoding="utf-8")

    def _remove_folder(self) -> None:
        if self._is_owner:
            shutil.rmtree(self._request["folder"], ignore_errors=True)

    def _terminate(self) -> None:
        if self.why_not() and not rank_of_launcher():
            say(Text("Nothing was diagnosed: {why}.").format(why=TERMINATED))
        self._remove_folder()
        end_by_signal(signal.SIGTERM)


def diagnose_script(
    program: Program,
    *,
    budget_s: float,
    details: bool = False,
    json_file: Path | None = None,
    tuned: bool = False,
) -> int:
    """Run a script or a module as Python does until its training is diagnosed; print the diagnosis.

    Args:
        program: from `script.load`.
        budget_s: as of `diagnose`.
        details: print the measurements, too.
        json_file: is written with the diagnosis.
        tuned: tune its loader instead.

    Returns:
        Exit status: 0; 1 where there is no diagnosis, or it ended early.

    Raises:
        BaseException: what the script raises before it is diagnosed.
    """
    folder = Path(tempfile.mkdtemp(prefix="labkit-diagnose-"))  # in which children leave results
    request = {
        "budget_s": budget_s,
        "details": details,
        "tuned": tuned,
        "json": str(json_file.absolute()) if json_file else None,
        "folder": str(folder),
        "owner": os.getpid(),
    }
    is_first = not rank_of_launcher()
    if is_first:
        what, budget = " ".join(program.words), units.whole_seconds(budget_s)
        text = Text(
            "This run is thrown away. Once {what} trains, copies of its loader and kept batches "
            "are measured for about {budget}; then it is ended, without the end of an epoch. Its "
            "own `finally` blocks and exception handlers run, and may write files."
        )
        before = shown(text.format(what=what, budget=budget))
        # Chinese characters take two columns.
        say(textwrap.fill(before, 45 if is_chinese() else 90))
    begun_s = time.time()
    start_children_with(VARIABLE, request, _diagnose_fork)
    live, own_exit = _ScriptDiagnosis(request), None
    live.begin()
    try:
        with supplying(live):
            execute(program)
    except SystemExit as error:
        own_exit = error
    except BaseException as error:
        show_as_without(error)
        raise
    finally:
        is_fork = os.getpid() != request["owner"]  # of the script, that ends as well
        changed: list[str] = []
        of_children: list[dict[str, Any]] = []
        if not is_fork:
            of_children = [json.loads(path.read_text("utf-8")) for path in folder.glob("*.json")]
            shutil.rmtree(folder, ignore_errors=True)
            changed = changed_files(Path.cwd(), begun_s, but=json_file) if is_first else []
        if changed:
            say(_changed_in_words(changed))
    why_not = _why_not(live, of_children) if is_first and not is_fork else ""
    is_missing = live.diagnosis is None and not any(each["is_diagnosed"] for each in of_children)
    if why_not and is_missing:
        say(Text("Nothing was diagnosed: {why}.").format(why=why_not))
    if own_exit is not None and own_exit.code:
        raise own_exit
    if why_not:
        _tell_launcher(why_not)
    if not is_fork:
        _end_threads(int(bool(why_not)))
    return int(bool(why_not))


def _why_not(live: LiveDiagnosis, of_children: Sequence[dict[str, Any]]) -> str:
    """Return why there is no whole diagnosis; "" where there is one, here or in a child."""
    if live.diagnosis is not None:
        return live.diagnosis.broken
    diagnosed = [each["why_not"] for each in of_children if each["is_diagnosed"]]
    reasons = diagnosed or [*(each["why_not"] for each in of_children), live.why_not()]
    return "" if "" in reasons else reasons[0]


def _tell_launcher(why_not: str) -> None:
    """Write why this process fails to the file whose text torchrun prints at its end."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if file:
        why = shown(Text("labkit: {why}").format(why=why_not))
        error = {"message": why, "extraInfo": {"timestamp": str(int(time.time()))}}
        with suppress(OSError):
            Path(file).write_text(json.dumps({"message": error}), encoding="utf-8")


def _changed_in_words(changed: Sequence[str]) -> Text:
    most = 10  # on the screen
    listed, more = ", ".join(changed[:most]), len(changed) - most
    if more > 0:
        text = Text("Files that changed during this run: {files}, and {n} more")
        return text.format(files=listed, n=more)
    return Text("Files that changed during this run: {files}").format(files=listed)


def _end_threads(status: int) -> None:
    """End this process with its threads, such as one that loads ahead and waits for the training.

    Does nothing where none is left.
    """
    others = [t for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
    if others:  # as Python does at its end: threads of pools end that have no more work
        threading.Thread(target=_python_exit, daemon=True).start()
    ends_s = time.monotonic() + 1.0  # seconds, for all of them
    for thread in others:
        thread.join(max(ends_s - time.monotonic(), 0.0))
    if any(thread.is_alive() for thread in others):
        atexit._run_exitfuncs()
        end_process(status)


def diagnose_when_it_trains() -> None:
    """Diagnose the training of this process, which a script started that is diagnosed."""
    _diagnose_here(must_train=multiprocessing.parent_process() is not None)


def _diagnose_fork() -> None:
    # Python would end them with this process: such as the workers of a trial in its parent.
    process._children.clear()  # type: ignore[attr-defined]
    _diagnose_here(must_train=True)  # it may load batches for the process that forked it


def _diagnose_here(*, must_train: bool) -> None:
    Termination.forget()
    request, stack = json.loads(os.environ[VARIABLE]), ExitStack()
    live = _ScriptDiagnosis(request, must_train=must_train)
    stack.callback(live.leave_reason)
    stack.enter_context(supplying(live))
    pid = os.getpid()

    def end(*_: object) -> None:
        if os.getpid() == pid:  # not in a fork of this process
            stack.close()

    atexit.register(end)
    Finalize(None, end, exitpriority=0)  # a process of multiprocessing may have no atexit
    # One that it forks begins by forgetting such functions.
    register_after_fork(live, lambda _: Finalize(None, end, exitpriority=0))


def changed_files(folder: Path, since_s: float, but: Path | None = None) -> list[str]:
    """Return files below a folder that changed, relative to it.

    Args:
        folder: at most 50,000 entries below it are looked at.
        since_s: by `time.time`.
        but: a file that is left out.
    """
    changed, looked_at = [], 0
    for path, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if each != "__pycache__"]
        for name in names:
            file = Path(path, name)
            with suppress(OSError):
                if file.stat().st_mtime >= since_s and not (but and but.samefile(file)):
                    changed.append(str(file.relative_to(folder)))
        looked_at += len(folders) + len(names)
        if looked_at > 50_000:  # files and folders
            break
    return changed
