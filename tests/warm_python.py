"""Python that has imported torch already: a fork of one server instead of a process of its own.

    run("-m", "labkit.watch", "train.py")

is `python -m labkit.watch train.py` without the seconds of CPU time that importing torch takes.
The command is a small client: it hands its files, folder and environment
to the server, passes signals on, and ends as the program does.
"""

import functools
import json
import os
import re
import signal
import socket
import sys
import threading
from pathlib import Path

CLIENT = "import sys; sys.path.insert(0, sys.argv[1]); import warm_python; warm_python.ask()"


_STARTING = threading.Lock()


def command():
    """Start the server if it does not run yet; return the client's words."""
    with _STARTING:
        return _command()


@functools.cache
def _command():
    import subprocess

    address = f"\0labkit-warm-python-{os.getpid()}"  # abstract: no file is left
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    server = subprocess.Popen([sys.executable, __file__, address[1:]], **pipes)
    assert server.stdout.readline() == b"listening\n"
    _command.server = server  # it ends with its standard input, and so with this process
    folder = str(Path(__file__).parent)
    return [sys.executable, "-S", "-E", "-c", CLIENT, folder, address[1:]]


def run(*words, python=None, **how):
    """Run a program to its end, here or in another Python; return it, with its output as text."""
    import subprocess

    from tests.processes import PATIENCE_S

    how = {"capture_output": True, "text": True, "timeout": PATIENCE_S, **how}
    return subprocess.run([*(python or command()), *map(str, words)], **how)


def without_its_frame(errors):
    """Leave out of printed tracebacks the frame of this module."""
    return re.sub(rf'  File "{re.escape(__file__)}", .*\n    .*\n', "", errors)


# --- the client -------------------------------------------------------------------------------


def ask():
    """Have the server run a program; end as it ends."""
    _, _, address, *words = sys.argv
    server = socket.socket(socket.AF_UNIX)
    server.connect(f"\0{address}")
    request = {"words": words, "folder": str(Path.cwd()), "environment": dict(os.environ)}
    data = json.dumps(request).encode()
    socket.send_fds(server, [len(data).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(data)
    answers = server.makefile()
    pid = int(answers.readline())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    for file in (0, 1, 2):
        os.close(file)  # who reads to the end waits for the program, not for this
    status = int(answers.readline())
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


# --- the server -------------------------------------------------------------------------------


def serve(address):
    """Fork twice for every request; return it in the second fork, which is to run it."""
    import select

    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"\0{address}")
    listening.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("listening", flush=True)
    while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
        client, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return accompany(client)
        client.close()
    sys.exit()


def accompany(client):
    """Say how a fork ends, and end it with its client; return the request in that fork."""
    import select

    head, files, *_ = socket.recv_fds(client, 4, 3)
    size, data = int.from_bytes(head, "big"), b""
    while len(data) < size:
        data += client.recv(size - len(data))
    pid = os.fork()
    if pid == 0:
        client.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        return json.loads(data)
    for file in (*files, 0, 1, 2):
        os.close(file)
    client.sendall(f"{pid}\n".encode())
    if client in select.select([client, os.pidfd_open(pid)], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    client.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def import_what_takes_long():
    import importlib

    for name in ("labkit.cli", "short_diagnosis", "torch"):
        importlib.import_module(name)


if __name__ == "__main__":
    import random
    import runpy
    import types

    import_what_takes_long()
    request = serve(sys.argv[1])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    random.seed()
    if sys.modules["short_diagnosis"].SHORT.items() <= os.environ.items():
        sys.modules["short_diagnosis"].shorten()
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if request["words"][0] == "-m":
        _, name, *arguments = request["words"]
        sys.argv, sys.path[0] = ["-m", *arguments], request["folder"]
        runpy._run_module_as_main(name)
    else:
        script = Path(request["words"][0])
        sys.argv, sys.path[0] = request["words"], str(script.resolve().parent)
        main.__file__ = str(script.absolute())
        exec(compile(script.read_bytes(), main.__file__, "exec", dont_inherit=True), vars(main))
