"""Shared fixtures, the order of the tests, and which are skipped.

Several processes test at a time.  Each has all tests of a file; what shares a JupyterLab or the
throttled disk is one group, a notebook is one of its own.
Each test works in an empty folder, with a home and an environment of the tests alone: what a user
has measured, named in labkit.toml or exported changes nothing.
Nothing may depend on how fast it is: other tests use the same cores.  What has to, as a diagnosis
names the bottleneck that it measures, is marked `alone`: `make test` runs it afterwards by itself.
"""

import importlib.util
import os
import random
import re
import shutil
import signal
import site
import sys
import tempfile
from pathlib import Path

import pytest
import skips
from hypothesis import HealthCheck, settings

# Torch's threads would wait for each other by spinning, which takes the cores from other tests.
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
# A busy machine may be slow.  Each session draws other examples, in CI too: its seed is printed.
settings.register_profile(
    "tests",
    deadline=None,
    derandomize=False,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tests")
# The notebooks' JSON library would build a grammar of addresses in each process, in 3 s.
sys.modules["rfc3987_syntax"] = None
ROOT = Path(__file__).parents[1]
# Names of environment variables that labkit, or a library that it calls, reads.
READ = re.compile(
    "LABKIT_|XDG_|JUPYTER|IPYTHON|MPL|PYINSTRUMENT_|PYSPARK_|SPARK_|TORCH_|TORCHINDUCTOR_|TF_|"
    "NCCL_|GLOO_|MASTER_|OMP_NUM_|MKL_NUM_|SLURM_|GIT_|"
    "(RANK|LOCAL_RANK|GROUP_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|COLUMNS|LINES|FORCE_COLOR)$"
)
# Files and folders that take long begin first: then no process goes on long after the others.
LONG = ("test_live.py", "test_watch.py", "notebooks", "browser", "runs", "tests")
# A machine has one throttled disk.
ON_THE_DISK = (
    "runs/test_staging.py", "test_slow_disk.py", "test_the_slow_disk", "to_its_end[main]",
    "[00_start]", "[02_prefetching]", "[03_storage]", "[04_preprocessing]", "[06_combined]",
    "[12_report]", "[07_packing]",
)  # fmt: skip


@pytest.hookimpl(tryfirst=True)  # before the plugin of Hypothesis
def pytest_configure(config):
    if config.option.hypothesis_seed is None:  # one for all processes that test at the same time
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))
    # A shell starts commands in the background with SIGINT ignored, and children inherit that:
    # tests that interrupt a command would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Before any library is imported that reads it.
    for name in filter(READ.match, list(os.environ)):
        del os.environ[name]
    os.environ["LC_ALL"] = "C.UTF-8"  # English
    # A proxy does not know this machine's servers.
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = "*"
    # Packages that were installed for the user alone stay where they are.
    os.environ.setdefault("PYTHONUSERBASE", site.getuserbase())
    # What a test starts imports this checkout, as the test does.
    paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    # One for all tests of this process: libraries take seconds to fill their caches, and a server
    # that waits for the next run serves none with another home.
    home = tempfile.TemporaryDirectory(prefix="labkit-home-", ignore_cleanup_errors=True)
    config.add_cleanup(home.cleanup)
    os.environ["HOME"] = os.environ["USERPROFILE"] = home.name


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call():
    # Pytest names the test here, and a server that waits for the next run serves none in another
    # environment: each test would start one, in two seconds.
    os.environ.pop("PYTEST_CURRENT_TEST", None)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup():
    os.environ.pop("PYTEST_CURRENT_TEST", None)


def pytest_terminal_summary(terminalreporter, config):
    skips.summarize(terminalreporter)
    if terminalreporter.stats.get("failed"):
        seed = config.option.hypothesis_seed
        terminalreporter.write_line(f"examples drawn with --hypothesis-seed={seed}")


def pytest_sessionfinish(session):
    # Of several processes only the one that started the others has a terminal, and all results.
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter and any(map(skips.fails, skips.reasons(reporter))):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    # Not by xdist's own marks, which pytest-xdist 3.8 loses with pytest 9.2.
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return _group(nodeid)

    return Groups(config, log)


def _group(nodeid):
    path = nodeid.partition("::")[0]
    if path.startswith("tests/browser/"):
        return "browser"
    if any(name in nodeid for name in ON_THE_DISK):
        return "throttled disk"
    return nodeid if path.startswith("tests/notebooks/") else path


def pytest_collection_modifyitems(items):
    # The rivals' threads stay in the process once they are imported: no other test is to fork, or
    # to count its threads, beside them.
    rivals = {item.path for item in items if _needs_rivals(item)}
    items.sort(key=lambda item: (item.path in rivals, _needs_rivals(item), _place(item)))
    cuda_items = [item for item in items if item.get_closest_marker("needs_cuda")]
    if cuda_items:
        _skip(cuda_items, _why_no_cuda())
    for item in filter(_needs_rivals, items):
        _skip([item], _missing_rivals(item))


def _why_no_cuda():
    if not Path("/dev/nvidia0").exists() and sys.platform == "linux":
        return "there is no NVIDIA GPU"
    from labkit.machine import gpu

    return gpu.cuda().reason


def _place(item):
    names = {item.path.name, item.path.parent.name}
    return next((place for place, name in enumerate(LONG) if name in names), len(LONG))


def _skip(items, reason):
    for item in items if reason else ():
        item.add_marker(pytest.mark.skip(reason=reason))


def _needs_rivals(item):
    return item.get_closest_marker("needs_rivals") is not None


def _missing_rivals(item):
    modules = item.get_closest_marker("needs_rivals").args or ("tensorflow", "nvidia.dali")
    missing = [name for name in modules if not _is_installed(name)]
    return (
        f"not installed: {', '.join(missing)}; pip install 'torch-labkit[rivals]'"
        if missing
        else ""
    )


def _is_installed(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # what it lies in
        return False


@pytest.fixture(scope="session", autouse=True)
def working_directory(tmp_path_factory):
    """The folder that all tests work in: with another one each would start a server (see above)."""
    # The search for the nearest labkit.toml ends here, also for what works in a tmp_path.
    (tmp_path_factory.getbasetemp() / "labkit.toml").touch()
    folder, before = tmp_path_factory.mktemp("empty"), Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


@pytest.fixture(autouse=True)
def empty(working_directory):
    """Begin in an empty folder, and without data that an earlier test copied to the home."""
    os.chdir(working_directory)
    for left in working_directory.iterdir():
        is_folder = left.is_dir() and not left.is_symlink()
        shutil.rmtree(left) if is_folder else left.unlink()
    shutil.rmtree(Path.home() / ".cache" / "labkit", ignore_errors=True)


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """24 synthetic photographs, made once."""
    from labkit.photos.make import make_photos

    folder = tmp_path_factory.mktemp("data") / "photos"
    make_photos(folder, 24, seed=1, progress=False)
    return folder


@pytest.fixture(scope="session", autouse=True)
def beside_others():
    """Calibrate in no time, as nothing is to be measured, and let simulated hardware be late.

    Returns what measures the reference, which takes processes of its own.
    """
    from labkit.runs import calibrated_device, calibration, check_simulated

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "CALIBRATION_S", 0.1)
        patch.setattr(calibration, "LOADING_S", 0.1)
        measures = calibrated_device._reference_rates
        patch.setattr(calibrated_device, "_reference_rates", lambda *given: ([200.0, 200.0], {}))
        patch.setattr(calibrated_device, "CALIBRATION_PROCESS_S", 0.01)
        patch.setattr(calibrated_device, "MIN_CALIBRATION_PROCESSES", 2)
        patch.setattr(calibrated_device, "MAX_CALIBRATION_S", 0.0)
        # The checks run, but beside other tests a GPU or a disk may be late.
        patch.setattr(check_simulated, "MIN_FREE_LOADER_UTILIZATION", 0.5)
        patch.setattr(check_simulated, "MAX_RATE_ERROR_SHARE", 1.0)
        yield measures


@pytest.fixture
def dying_workers(monkeypatch):
    """Let torch raise in whatever runs when a loader worker dies, were it a __del__.

    It looks again later.  Pytest would format what cannot be raised, and torch may raise meanwhile.
    """
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
