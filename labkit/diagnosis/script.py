"""Run a training script under `watch`, with all processes that it starts and that train.

run ─▶ the script itself            ─▶ report, JSON
─▶ a process that it starts     ─▶ the same, once it trains
(startup/sitecustomize.py, or a fork)
─▶ ranks leave their facts in a folder ─▶ the first one, or `run`, prints a table
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import wraps
from multiprocessing.util import Finalize
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

from labkit import files
from labkit.diagnosis.answer import Facts, answer, lines, lines_of_ranks, phase_line
from labkit.diagnosis.compare import VERSION, Watched, compare_watched, machine, read_watched
from labkit.diagnosis.hook import HOOK
from labkit.diagnosis.loader_arguments import LoaderArguments, Value
from labkit.diagnosis.loaders import written
from labkit.diagnosis.watch import Watch, rank_of_launcher, say
from labkit.language import Text, shown

VARIABLE = "LABKIT_WATCH"  # of the environment: what started processes are to do, as JSON
get_signal, set_signal = signal.getsignal, signal.signal  # a script sees others: `Termination`


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is watched, and where the facts go."""

    words: list[str]
    """The script or -m MODULE, and its arguments."""
    following: str = ""
    """The command that goes on."""
    json: str | None = None
    """File for the facts."""
    loader: dict[str, Value] | None = None
    """Arguments that DataLoaders get."""
    before: str | None = None
    """File of an earlier run, with which this one is compared."""
    folder: str
    """In which processes leave their facts."""
    owner: int = 0
    """Process that removes the folder; 0: the first rank."""


class Session:
    """The watch of one process.

    Args:
        request: what is watched.
        is_child: a watched script started this process.
    """

    def __init__(self, request: Request, *, is_child: bool = False) -> None:
        self.watch = Watch(HOOK, lambda _: self._report(), self.say, self._leave_facts)
        self._request, self._is_child, self.pid = request, is_child, os.getpid()
        self._folder, self._has_ended = Path(request.folder), False

    def start(self) -> Session:
        """Watch this process until `end`, or until its own end."""
        self.watch.start()
        HOOK.is_reported = True
        Termination(self._end_early).install()
        if self._is_child:
            atexit.register(self.end)
            Finalize(None, self.end, exitpriority=0)  # a forked process has no atexit before 3.13
        return self

    def end(self) -> None:
        """Report for the last time; does nothing the second time, or in a forked child."""
        if self._has_ended or os.getpid() != self.pid:
            return
        self._has_ended = True
        self.watch.stop()
        # The owner removes it when the processes that it started have ended.
        if not self.watch.rank and not _runs(self._request.owner):
            shutil.rmtree(self._folder, ignore_errors=True)

    def _end_early(self) -> None:
        """Report before SIGTERM ends this process."""
        self.say(Text("The script was terminated; this was measured until then."))
        self.end()
        if self._request.owner != self.pid:
            return
        # Ranks that are terminated as well leave facts in it, which the first of them reads.  Those
        # that end only after this process remove it.
        until_s = time.monotonic() + 2.0
        while any(each["pid"] != self.pid and _runs(each["pid"]) for each in self._others()):
            if time.monotonic() > until_s:
                return
            time.sleep(0.05)
        shutil.rmtree(self._folder, ignore_errors=True)

    def say(self, what: object) -> None:
        """Print lines, with the rank where there is one."""
        rank = self.watch.rank
        say(what, "labkit" if rank is None else Text("labkit, rank {rank}").format(rank=rank))

    def _leave_facts(self) -> None:
        """Write what other processes may read: ranks, and the one that started this one."""
        if self._is_child or self.watch.rank is not None:
            self._write_facts(self._as_json(self.watch.facts()))

    def _write_facts(self, known: dict[str, Any]) -> None:
        name = self.pid if known["rank"] is None else known["rank"]
        with suppress(OSError):
            _write(self._folder / f"{name}.json", known)

    def _as_json(self, facts: Facts) -> dict[str, Any]:
        return facts.as_json() | {
            "rank": self.watch.rank,
            "pid": self.pid,
            "version": VERSION,
            "machine": machine(facts.computes_on),
            "has_ended": self._has_ended,
        }

    def _report(self) -> None:
        """Print what was measured, and write it."""
        if os.getpid() != self.pid:
            return
        facts = self.watch.facts()
        known, rank = self._as_json(facts), self.watch.rank
        if self._is_child or rank is not None:
            self._write_facts(known)
        others = self._others()
        if rank is None:
            if others and facts.phases.unseen == "nothing":
                return  # they have reported
            self.say("\n".join(lines(facts, self._request.following)))
        elif rank == 0:
            self.say("\n".join(lines_of_ranks(facts, others, self._request.following)))
        elif self._has_ended:
            self.say(answer(facts).sentence if facts.phases.unseen else phase_line(facts))
        if self._has_ended and not rank:
            self._say_at_the_end(known)
        if self._request.json:
            path = Path(self._request.json)
            path = path.with_stem(f"{path.stem}-rank{rank}") if rank else path
            script, *arguments = self._request.words
            try:
                _write(path, {"script": script, "arguments": arguments} | known)
            except OSError as error:  # the script's own status stays
                self.say(f"--json: {error}")

    def _say_at_the_end(self, known: dict[str, Any]) -> None:
        """Print whether loaders were changed as asked, and the comparison with an earlier run."""
        if HOOK.loader_arguments is not None:
            for note in HOOK.loader_arguments.notes():
                self.say(note)
        if self._request.before:
            try:
                before = read_watched(Path(self._request.before))
                compared = compare_watched(before, Watched.of(known, "this run"))
                text = "\n".join(map(shown, compared))
            except (ValueError, OSError) as error:
                text = str(error)
            self.say(text)

    def _others(self) -> list[dict[str, Any]]:
        """Return what processes left in the folder; the first rank at its end waits for others."""
        here = int(os.environ.get("LOCAL_WORLD_SIZE") or self.watch.ranks)
        waits = self._has_ended and self.watch.rank == 0
        until_s = time.monotonic() + (5.0 if waits else 0.0)
        while True:
            reports = []
            for path in self._folder.glob("*.json"):
                with suppress(OSError, ValueError):
                    reports.append(json.loads(path.read_text(encoding="utf-8")))
            ended = sum(each["has_ended"] or not _runs(each["pid"]) for each in reports)
            if ended >= here or time.monotonic() >= until_s:
                return reports
            time.sleep(0.05)


class Termination:
    """What this process does when SIGTERM comes: it reports, and ends as without labkit.

    Args:
        report: called in this process; its forks only end.
    """

    def __init__(self, report: Callable[[], object]) -> None:
        self._report, self._pid = report, os.getpid()

    def install(self) -> None:
        """Handle SIGTERM unless the script does, or this is not the main thread."""
        with suppress(ValueError):  # another thread
            if get_signal(signal.SIGTERM) is signal.SIG_DFL:
                set_signal(signal.SIGTERM, self)
                self._hide()

    @staticmethod
    def forget() -> None:
        """Take back what the process has installed that forked this one."""
        if isinstance(get_signal(signal.SIGTERM), Termination):
            set_signal(signal.SIGTERM, signal.SIG_DFL)

    def __call__(self, number: int, _: FrameType | None) -> None:
        """Handle the signal."""
        # The signal often comes twice, and to workers as well, whose end torch would raise here.
        set_signal(number, signal.SIG_IGN)
        if hasattr(signal, "SIGCHLD"):
            set_signal(signal.SIGCHLD, signal.SIG_DFL)
        if os.getpid() == self._pid:
            self._report()
        end_by_signal(number)

    def _hide(self) -> None:
        """Have the script see the default handler, as without labkit.

        Lightning calls the handler that it finds after its own one.
        """

        def shown(handler: Any) -> Any:
            return signal.SIG_DFL if isinstance(handler, Termination) else handler

        def getsignal(number: int) -> Any:
            return shown(get_signal(number))

        def set_(number: int, handler: Any) -> Any:
            is_default = number == signal.SIGTERM and handler == signal.SIG_DFL
            return shown(set_signal(number, self if is_default else handler))

        for name, own, seen in (("getsignal", get_signal, getsignal), ("signal", set_signal, set_)):
            setattr(signal, name, wraps(own)(seen))


def end_by_signal(number: int) -> None:
    """End this process as a signal without a handler does."""
    set_signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _runs(pid: int) -> bool:
    """Return whether a process runs; a rank may be killed before it says that it has ended."""
    import psutil

    if not pid:
        return False

    with suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def _write(path: Path, facts: dict[str, Any]) -> None:
    with files.whole(path) as part:
        part.write_text(json.dumps(facts, indent=1), encoding="utf-8")


# --- processes --------------------------------------------------------------------------------


class Program(NamedTuple):
    """What Python would run."""

    code: CodeType
    main: ModuleType
    """To be __main__."""
    folder: str
    """The first one of sys.path."""
    argv: list[str]
    words: list[str]
    """The script or -m MODULE, and its arguments, as the shell takes them."""


def run(
    program: Program,
    *,
    json_file: Path | None = None,
    loader: dict[str, Value] | None = None,
    before: Path | None = None,
) -> Session:
    """Run a script or a module as Python does, and report on the training.

    Each process that trains reports, also one that the script starts; of several ranks the first
    one does, with a table of all, and the others print a line at the end.  Whatever the script
    raises is raised, and its traceback printed without this module.

    Args:
        program: from `load`.
        json_file: is written at every report.
        loader: arguments that every DataLoader gets in place of the script's; from
            `loader_arguments.read_arguments`.
        before: file of an earlier run, with which this one is compared at its end.
    """
    request = Request(
        words=program.argv,
        following=shlex.join(["labkit", "diagnose", *program.words]),
        json=str(json_file.absolute()) if json_file else None,
        loader=loader,
        before=str(before.absolute()) if before else None,
        **_where(),
    )
    if loader:
        HOOK.loader_arguments = LoaderArguments(loader)
        if not rank_of_launcher():
            gets = Text("Every DataLoader that the script makes gets {arguments}.")
            say(gets.format(arguments=written(loader)))
    HOOK.at_first = None  # of a process that a watched script started
    session = Session(request).start()
    if request.owner == os.getpid():
        # After multiprocessing has waited for the children.
        Finalize(None, shutil.rmtree, args=(request.folder, True), exitpriority=-200)
    _watch_children(request)
    # Python ≥ 3.12 warns where a process with threads forks.  The threads of `Watch` hold no lock
    # that a child needs, so a script that forks prints what it prints without them.
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", module="__main__")
    try:
        execute(program)
    except SystemExit:
        raise
    except BaseException as error:
        if os.getpid() == session.pid:
            ended = Text("The script ended with {error}; this was measured until then.")
            session.say(ended.format(error=type(error).__name__))
        show_as_without(error)
        raise
    finally:
        session.end()
    return session


def execute(program: Program) -> None:
    """Run a script or a module as Python does; raise what it raises."""
    code, main, folder, argv, _ = program
    sys.modules["__main__"] = main  # to the end: workers and pickles look for its names
    sys.argv, sys.path[0] = argv, folder
    exec(code, vars(main))


def load(words: list[str]) -> Program:
    """Return a script or a module, ready to run.

    Args:
        words: the script's file, or "-m" and a module; then its own arguments.

    Raises:
        ValueError: there is no such module.
        OSError: the script cannot be read.
        SyntaxError: it is no Python.
    """
    main = ModuleType("__main__")
    if words[0] != "-m":
        script = Path(words[0])
        main.__file__ = str(script.absolute())
        # Without this module's own `from __future__ import annotations`.
        try:
            code = compile(script.read_bytes(), main.__file__, "exec", dont_inherit=True)
        except SyntaxError as error:
            show_as_without(error)
            raise
        return Program(code, main, str(script.resolve().parent), words, words)
    name = words[1]
    sys.path.insert(0, str(Path.cwd()))
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
        code = spec.loader.get_code(spec.name)  # type: ignore[union-attr,attr-defined]
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"-m must name a module that can be run, got {name!r} ({error})"
        ) from error
    finally:
        del sys.path[0]
    main.__spec__, main.__loader__, main.__file__ = spec, spec.loader, spec.origin
    main.__package__ = spec.parent
    return Program(code, main, str(Path.cwd()), [str(spec.origin), *words[2:]], words)


def _where() -> dict[str, Any]:
    """Return in which folder ranks meet, and which process removes it."""
    if VARIABLE in os.environ:
        known = json.loads(os.environ[VARIABLE])
        return {"folder": known["folder"], "owner": known["owner"]}
    if rank_of_launcher() is not None:
        # The same for all processes of one launcher.
        run = os.environ.get("TORCHELASTIC_RUN_ID"), os.environ.get("MASTER_PORT"), os.getppid()
        name = hashlib.sha256(repr(run).encode()).hexdigest()[:16]
        folder = Path(tempfile.gettempdir(), f"labkit-watch-{name}")
        with suppress(OSError, AttributeError):  # Windows has no owners
            folder.mkdir(mode=0o700, exist_ok=True)
            if files.is_private(folder.lstat()):
                return {"folder": str(folder), "owner": 0}
    return {"folder": tempfile.mkdtemp(prefix="labkit-watch-"), "owner": os.getpid()}


def _watch_children(request: Request) -> None:
    """Have processes that this one starts watched once they train."""
    start_children_with(VARIABLE, asdict(request), watch_when_it_trains)


def start_children_with(
    variable: str, request: dict[str, Any], start: Callable[[], object]
) -> None:
    """Have processes that this one starts do something at their start.

    Args:
        variable: of the environment, which holds the request as JSON.
        request: what they are to do.
        start: called in those that are forked; others call it by `startup/sitecustomize.py`.
    """
    os.environ[variable] = json.dumps(request)
    startup = str(Path(__file__).with_name("startup"))
    paths = [startup, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=start)


def watch_when_it_trains() -> None:
    """Watch this process, which a watched script started, from its first step on."""
    request = Request(**json.loads(os.environ[VARIABLE]))
    Termination.forget()
    if request.loader and HOOK.loader_arguments is None:
        HOOK.loader_arguments = LoaderArguments(request.loader)
    HOOK.wait_for_training(lambda: Session(request, is_child=True).start())


def show_as_without(error: BaseException) -> None:
    """Have a traceback printed without the frames of this package and of what called it."""
    names = ("script", "hook", "live", "live_script")
    own = {str(Path(__file__).with_name(f"{name}.py")) for name in names}
    frames, each = [], error.__traceback__
    while each is not None:
        if each.tb_frame.f_code.co_filename not in own:
            frames.append(each)
        each = each.tb_next
    for each, following in zip(frames, [*frames[1:], None]):
        each.tb_next = following
    first, show = (frames or [None])[0], sys.excepthook
    sys.excepthook = lambda kind, value, _: show(kind, value.with_traceback(first), first)
