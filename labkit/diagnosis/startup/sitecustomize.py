"""Python runs this at the start of each process that a watched or diagnosed script starts.

It comes from PYTHONPATH.  The machine's own sitecustomize runs first, and a worker of a DataLoader,
which trains nothing, is left alone.
"""

import importlib
import os
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path


def _start() -> None:
    package_folder = str(Path(__file__).parents[3])
    sys.path.append(package_folder)  # last: it may hold a random.py
    try:
        if "LABKIT_DIAGNOSE" in os.environ:
            from labkit.diagnosis.live_script import diagnose_when_it_trains as start
        else:
            from labkit.diagnosis.script import watch_when_it_trains as start
    except ImportError:  # another Python, without what labkit needs
        return
    finally:
        sys.path.remove(package_folder)
    start()


def _start_if_it_may_train(process: BaseProcess) -> None:
    target = getattr(process, "_target", None)
    if not getattr(target, "__module__", "").startswith("torch.utils.data."):
        _start()
    _run(process)


sys.path[:] = [path for path in sys.path if Path(path) != Path(__file__).parent]
_this = sys.modules.pop("sitecustomize", None)
try:
    importlib.import_module("sitecustomize")
except ImportError:
    sys.modules["sitecustomize"] = _this  # type: ignore[assignment]  # Python expects one
_run = BaseProcess.run
if "--multiprocessing-fork" in sys.orig_argv:
    setattr(BaseProcess, "run", _start_if_it_may_train)  # noqa: B010
else:
    _start()
