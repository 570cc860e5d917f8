"""A JupyterLab of its own: a copy of the notebooks, a server on this machine, nothing remembered.

    notebooks, photographs ─▶ copied into a folder ─▶ serve(folder) ─▶ Server.url, .left(), .rows()

Nothing that the user has set up is read or changed: settings, workspaces and kernels' histories all
lie in the folder.  A server that is killed leaves its kernels running, so all are found by an
environment variable that they inherit.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import nbformat
import psutil

from benchmarks.frame import marked
from labkit.runs.store import TRIALS_FILE

ROOT = Path(__file__).parents[1]
MARK = "LABKIT_JUPYTER"  # in the environment of the server and of all that it starts
PATIENCE_S = 300.0  # how long to look for something that must happen; no speed limit
LOOK_EVERY_S = 0.05
ENDS_WITHIN_S = 10.0
# What may stay: the server, however it was started, and kernels that wait.
STAYS = {"make", "jupyter", "jupyter-lab", "jupyterlab", "ipykernel_launcher"}
TRIAL_SERVER = "labkit.runs.server"
NOTIFICATION = "@jupyterlab/apputils-extension/notification.jupyterlab-settings"


@dataclass(frozen=True)
class Server:
    """A server that answers."""

    url: str
    folder: Path
    """What it serves; see `make_workplace`."""
    mark: str
    """The value of `MARK`, and the token that the server asks for."""
    log: Path

    @property
    def settings(self) -> Path:
        """The folder of JupyterLab's settings; a page reads them when it is opened."""
        return self.folder / ".jupyter" / "settings"

    def processes(self) -> list[psutil.Process]:
        """List the server and all that was started below it, wherever in the tree it is now."""
        return marked(MARK, self.mark)

    def left(self) -> list[str]:
        """List the command lines of what is neither the server nor a kernel.

        A kernel's trial server is not listed either, as it waits for the next run; what it has
        started is, and so is one whose kernel is gone.
        """
        commands, parents = {}, {}
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                commands[process.pid] = process.cmdline()
                parents[process.pid] = process.ppid()
        stay = {
            pid
            for pid, command in commands.items()
            if not STAYS.isdisjoint(Path(word).name for word in command[:3])
        }
        stay |= {
            pid
            for pid, command in commands.items()
            if TRIAL_SERVER in command and parents.get(pid) in stay
        }
        return [f"{pid}: {' '.join(commands[pid])}" for pid in commands.keys() - stay]

    def shut_down_kernels(self) -> None:
        """End all kernels, as a user does in the list of what is running."""
        for kernel in self._ask("GET", "api/kernels"):
            self._ask("DELETE", f"api/kernels/{kernel['id']}")

    def runs(self) -> list[Path]:
        """List the run folders, oldest first."""
        return sorted(
            (path.parent for path in self.folder.glob("results/*/*/run.json")),
            key=lambda path: path.name,
        )

    def _ask(self, method: str, path: str) -> object:
        headers = {"Authorization": f"token {self.mark}"}
        request = urllib.request.Request(f"{self.url}/{path}", method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.loads(answer.read() or b"null")


def make_workplace(folder: Path, notebooks: Mapping[str, Mapping[str, object]]) -> Path:
    """Copy notebooks into an empty folder, where a server may change them.

    Args:
        folder: gets ``notebooks/``.
        notebooks: stem, as ``02_prefetching`` -> values for its parameters, in a cell right after
            them as papermill puts it there.

    Returns:
        The folder.
    """
    (folder / "notebooks").mkdir(parents=True)
    for name, given in notebooks.items():
        notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
        (place,) = (
            number
            for number, cell in enumerate(notebook.cells)
            if "parameters" in cell.metadata.get("tags", [])
        )
        lines = [f"{key} = {value!r}" for key, value in given.items()]
        notebook.cells.insert(place + 1, nbformat.v4.new_code_cell("\n".join(lines)))
        nbformat.write(notebook, folder / "notebooks" / f"{name}.ipynb")
    return folder


def until(
    condition: Callable[[], object],
    what: Callable[[], object],
    pause: Callable[[], None] = lambda: time.sleep(LOOK_EVERY_S),
) -> None:
    """Wait for a condition.

    Args:
        condition: asked again and again.
        what: says at the end what should have been.
        pause: passes the time between two looks.

    Raises:
        AssertionError: it did not come true.
    """
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not in {PATIENCE_S:.0f} s: {what()}")
        pause()


def rows_in(folder: Path) -> int:
    """Count the rows that a run has on disk."""
    path = folder / TRIALS_FILE
    return path.read_bytes().count(b"\n") if path.exists() else 0


@contextlib.contextmanager
def serve(folder: Path, command: Sequence[str] | None = None) -> Iterator[Server]:
    """Start a server and wait until it answers; end it and all its kernels afterwards.

    Args:
        folder: what it serves, made by `make_workplace`.
        command: starts it; unset: ``jupyter lab``.

    Raises:
        RuntimeError: it ended, or did not answer; the message holds its log.
    """
    place = folder / ".jupyter"
    mark = secrets.token_hex()
    # As a user would write it; read instead of the user's own.
    server_config = {
        "ServerApp": {
            "ip": "127.0.0.1",
            "port": 0,  # any that is free when it is taken
            "port_retries": 0,
            "root_dir": str(folder),
            "allow_root": True,
            "open_browser": False,
        },
        "LabApp": {
            "expose_app_in_browser": True,
            "news_url": None,
            "workspaces_dir": str(place / "workspaces"),
        },
    }
    _write_json(place / "config/jupyter_server_config.json", server_config)
    # Else the server asks the network for newer versions, and a question covers the page.
    quiet = {"checkForUpdates": False, "fetchNews": "false"}
    _write_json(place / "settings" / NOTIFICATION, quiet)
    environment = {
        **os.environ,
        MARK: mark,
        "JUPYTER_TOKEN": mark,
        "JUPYTER_CONFIG_DIR": str(place / "config"),
        "JUPYTER_DATA_DIR": str(place / "data"),
        "JUPYTER_RUNTIME_DIR": str(place / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(place / "settings"),
        "IPYTHONDIR": str(place / "ipython"),
    }
    log = place / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command or [sys.executable, "-m", "jupyterlab"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Server("", folder, mark, log)
    try:
        server = replace(server, url=_wait_for_url(server, process, place / "runtime"))
        yield server
    finally:
        _end(server, process)


def _write_json(path: Path, values: Mapping[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values), encoding="utf-8")


def _wait_for_url(server: Server, process: subprocess.Popen, runtime: Path) -> str:
    """Wait until the server has written down its address and answers there."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with contextlib.suppress(OSError, ValueError):
            for written in runtime.glob("jpserver-*.json"):
                url = json.loads(written.read_text(encoding="utf-8"))["url"].rstrip("/")
                with urllib.request.urlopen(f"{url}/api", timeout=1) as answer:
                    json.load(answer)
                return url
        time.sleep(LOOK_EVERY_S)
    how = "did not answer" if process.poll() is None else f"ended with {process.returncode}"
    raise RuntimeError(f"jupyter {how}:\n{server.log.read_text(encoding='utf-8')}")


def _end(server: Server, process: subprocess.Popen) -> None:
    """End the server, which ends its kernels; then whatever is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(ENDS_WITHIN_S)
    for left in server.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            left.kill()
    process.wait()
