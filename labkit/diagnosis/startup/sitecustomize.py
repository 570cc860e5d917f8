"""Python runs this at the start of each process that a watched script starts.

It comes from PYTHONPATH.  The machine's own sitecustomize runs first, and a worker of a DataLoader,
which trains nothing, is left alone.
"""

import importlib
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path


def _watch() -> None:
    package_folder = str(Path(__file__).parents[3])
    sys.path.append(package_folder)  # last: it may hold a random.py
    try:
        from labkit.diagnosis.script import watch_when_it_trains
    except ImportError:  # another Python, without what labkit needs
        return
    finally:
        sys.path.remove(package_folder)
    watch_when_it_trains()


def _watch_if_it_may_train(process: BaseProcess) -> None:
    target = getattr(process, "_target", None)
    if not getattr(target, "__module__", "").startswith("torch.utils.data."):
        _watch()
    _run(process)


sys.path[:] = [path for path in sys.path if Path(path) != Path(__file__).parent]
_this = sys.modules.pop("sitecustomize", None)
try:
    importlib.import_module("sitecustomize")
except ImportError:
    sys.modules["sitecustomize"] = _this  # type: ignore[assignment]  # Python expects one
_run = BaseProcess.run
if "--multiprocessing-fork" in sys.orig_argv:
    setattr(BaseProcess, "run", _watch_if_it_may_train)  # noqa: B010
else:
    _watch()
