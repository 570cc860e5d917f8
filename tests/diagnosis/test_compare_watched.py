"""Two watched trainings are compared; a watched training tries other arguments of its loaders."""

import json
import re

import pytest

from labkit.cli import main
from labkit.diagnosis.compare import Watched, compare_watched
from labkit.diagnosis.loader_arguments import LoaderArguments, read_arguments
from tests import warm_python
from tests.diagnosis.scripts import TRAINING

SCRIPT = (
    TRAINING.replace("400", "100").replace("0.002", "random.uniform(0, 2 * SAMPLE_S)")
    + """
SAMPLE_S, STEPS, HOW = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

def train(**options):
    random.seed(0)
    batches, taken = loader(1, shuffle=True, **options), 0
    while taken < STEPS:
        for batch in batches:
            step(batch)
            taken += 1
            if taken == 1:  # libraries have started
                began_s = time.perf_counter()
            if taken == STEPS:
                break
    return (time.perf_counter() - began_s) / (STEPS - 1)

if __name__ == "__main__":
    if HOW == "fork" and os.fork():
        os.wait()
    elif HOW == "spawn":
        process = torch.multiprocessing.get_context("spawn").Process(target=train)
        process.start()
        process.join()
    elif HOW == "workers":
        train(num_workers=1, persistent_workers=True)
    elif HOW != "none":
        print(train())
"""
)


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("scripts") / "train.py"
    path.write_text(SCRIPT)
    return path


def watch(script, *words, sample_s=0.01, steps=300, how="plain"):
    """Run the script under `labkit watch`; return status, output and labkit's lines."""
    done = warm_python.run("-m", "labkit.watch", *words, script, sample_s, steps, how)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def slow(script, tmp_path_factory):
    """The file of a training that waits 10 ms for a batch, and its own time of a step."""
    path = tmp_path_factory.mktemp("watched") / "slow.json"
    status, out, errors = watch(script, "--json", path)
    assert status == 0, errors
    return path, float(out)


@pytest.fixture(scope="module")
def fast(script, slow, tmp_path_factory):
    """The same of one that waits half as long, and what was printed of the comparison."""
    path = tmp_path_factory.mktemp("watched") / "fast.json"
    words = ["--json", path, "--compare", slow[0]]
    status, out, errors = watch(script, *words, sample_s=0.005)
    assert status == 0, errors
    return path, float(out), errors


def compare(before, after, capsys):
    status = main(["compare", str(before), str(after)])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


# --- the command


INTERVAL = re.compile(r"^(\w+( difference)?): ([\d.]+) times as fast \[([\d.]+), ([\d.]+)\]", re.M)


@pytest.mark.alone
def test_half_the_sleep_is_faster_and_the_interval_holds_the_truth(slow, fast, capsys):
    status, out, errors = compare(slow[0], fast[0], capsys)
    assert (status, errors) == (0, "")
    verdict, _, ratio, low, high = INTERVAL.match(out).groups()
    assert verdict == "Faster"
    # As the scripts' own clocks have it.
    assert float(low) < slow[1] / fast[1] < float(high)
    assert float(low) < float(ratio) < float(high)
    assert 1.5 < float(ratio) < 2.1
    rates, waits = re.search(r"\(([\d.]+) → ([\d.]+) images/s\)", out), out.splitlines()[1]
    assert float(rates[2]) / float(rates[1]) == pytest.approx(float(ratio), rel=0.01)
    waited = r"Waiting for data: 9\d\.\d % of the time before, \d\d\.\d % after\."
    assert re.fullmatch(waited, waits)
    assert "Changed" not in out


@pytest.mark.alone
def test_the_other_way_round_it_is_slower(slow, fast, capsys):
    verdict, _, ratio, *_ = INTERVAL.match(compare(fast[0], slow[0], capsys)[1]).groups()
    assert verdict == "Slower"
    assert float(ratio) < 0.7


def test_watch_prints_the_same_comparison_at_its_end(slow, fast, capsys):
    out = compare(slow[0], fast[0], capsys)[1]
    said = [line.removeprefix("[labkit] ") for line in fast[2].splitlines()]
    lines = out.splitlines()
    assert said[-len(lines) :] == lines


@pytest.mark.long
def test_the_same_script_twice_is_not_called_faster_or_slower(script, slow, tmp_path, capsys):
    path = tmp_path / "again.json"
    watch(script, "--json", path)
    verdict, *_, low, high = INTERVAL.match(compare(slow[0], path, capsys)[1]).groups()
    assert verdict in ("No difference", "Inconclusive")
    assert float(low) < 1 < float(high)


def test_a_file_compared_with_itself_differs_in_nothing(slow, capsys):
    out = compare(slow[0], slow[0], capsys)[1]
    assert re.match(r"(Inconclusive|No difference): 1\.00 times as fast \[0\.", out)


def test_too_few_steps_are_inconclusive(script, slow, tmp_path, capsys):
    path = tmp_path / "short.json"
    watch(script, "--json", path, steps=30)
    status, out, _ = compare(slow[0], path, capsys)
    assert status == 0
    assert out == (
        "Inconclusive: 50 steps of each run are needed after its first ones, got 29 of "
        f"{path}. Let it train longer.\n"
    )


# --- files that cannot be compared


def known(slow, **changes):
    facts = json.loads(slow[0].read_text())
    for name, value in changes.items():
        *outer, name = name.split("__")
        place = facts
        for key in outer:
            place = place[int(key) if key.isdigit() else key]
        place[name] = value
    return facts


def run(slow, name="run", **changes):
    return Watched.of(known(slow, **changes), name)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"training__loaders__0__samples": 2000}, "the samples of the data set: 100, then 2,000"),
        ({"training__loaders__0__batch_size": 8}, "the batch size: 1, then 8"),
        ({"training__loaders__0__batch_size": None}, "the batch size: 1, then unknown"),
        ({"ranks": 4}, "the processes that train: 1, then 4"),
        (
            {"machine": {"cpu": "Fast CPU", "cores": 1, "gpu": "cpu"}},
            "the machine: .*, then 1 core of Fast CPU, cpu",
        ),
    ],
)
def test_another_training_or_machine_is_not_compared(slow, tmp_path, capsys, changes, reason):
    path = tmp_path / "other.json"
    path.write_text(json.dumps(known(slow, **changes)))
    status, out, errors = compare(slow[0], path, capsys)
    assert (status, out) == (2, "")
    names = re.escape(f"{slow[0]} and {path}")
    assert re.fullmatch(f"labkit: {names} cannot be compared: {reason}\n", errors)


def test_steps_of_other_batches_are_not_compared_where_no_loader_tells_their_size(slow):
    """As of a batch_sampler of the user's own, and of batch_size=None."""
    steps = known(slow)["training"]["steps"]
    unknown = {"training__loaders__0__batch_size": None}
    runs = {each: run(slow, training__images=each * steps, **unknown) for each in (64, 32)}
    with pytest.raises(ValueError, match=r"compared: the images of a step: 64, then 32$"):
        compare_watched(runs[64], runs[32])
    assert "1.00 times as fast" in compare_watched(runs[64], runs[64])[0]
    # The last batch of an epoch may be small.
    almost = run(slow, training__images=64 * steps - 30, **unknown)
    assert "1.00 times as fast" in compare_watched(runs[64], almost)[0]


def test_all_that_differs_is_named_in_one_line(slow):
    after = run(slow, ranks=2, training__loaders__0__samples=7)
    with pytest.raises(ValueError, match="that train: 1, then 2; the samples of the data set: 100"):
        compare_watched(run(slow), after)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"no JSON", "must be a file of `labkit watch --json`, but is no JSON (Expecting value"),
        (b"\xff", "must be a file of `labkit watch --json`, but is no JSON ('utf-8' codec"),
        *((text, "must be a file of `labkit watch --json`, but is empty; write it again with")
          for text in (b"", b" \n", b"null")),
        *((text, "must be a file of `labkit watch --json`; write it again with")
          for text in (b"{}", b"[1]", b'{"verdict": "input-bound"}')),
        *((text, "is of another version of labkit; write it again with")
          for text in (b'{"training": {}}', b'{"training": {}, "version": 2}')),
        (b'{"training": {}, "version": 1}', "is damaged (KeyError('machine')); write it again"),
    ],
)  # fmt: skip
def test_other_files_are_one_line(slow, tmp_path, capsys, text, reason):
    path = tmp_path / "other.json"
    path.write_bytes(text)
    status, out, errors = compare(slow[0], path, capsys)
    assert (status, out, errors.count("\n")) == (2, "", 1)
    assert errors.startswith(f"labkit: {path} {reason}")


def test_a_file_that_is_missing_is_one_line_also_before_the_script_runs(script, slow, capsys):
    status, out, errors = compare(slow[0], "missing.json", capsys)
    assert (status, out) == (2, "")
    assert errors == "labkit: [Errno 2] No such file or directory: 'missing.json'\n"
    status, out, errors = watch(script, "--compare", "missing.json")
    assert (status, out) == (2, "")
    assert errors.startswith("labkit: [Errno 2] No such file or directory: 'missing.json'; see")


def test_another_file_ends_watch_before_the_script_runs(script, tmp_path):
    path = tmp_path / "other.json"
    path.touch()
    status, out, errors = watch(script, "--compare", path)
    assert (status, out, errors.count("\n")) == (2, "", 1)
    assert errors.startswith(
        f"labkit: {path} must be a file of `labkit watch --json`, but is empty;"
    )


def test_a_file_without_a_training_is_not_compared(script, slow, tmp_path, capsys):
    path = tmp_path / "none.json"
    watch(script, "--json", path, how="none")
    status, _, errors = compare(slow[0], path, capsys)
    assert status == 2
    assert "none.json holds no training: no DataLoader of torch was iterated over" in errors


def test_a_run_is_not_compared_with_the_file_that_it_overwrites(script, slow):
    status, _, errors = watch(script, "--json", slow[0], "--compare", slow[0])
    assert status == 2
    assert errors.startswith("labkit: --json must be another file than --compare, got ")


def test_another_training_leaves_the_scripts_status_to_it(script, slow, tmp_path):
    other = tmp_path / "other.json"
    other.write_text(json.dumps(known(slow, ranks=4)))
    status, _, errors = watch(script, "--compare", other, steps=30)
    assert status == 0
    assert f"[labkit] {other} and this run cannot be compared: the processes" in errors


def test_starts_of_epochs_in_one_of_two_runs_are_inconclusive(slow):
    total_s = known(slow)["training"]["wait_s"]
    before = run(slow, "before.json", training__starts_s=0.2 * total_s)
    first, *_ = compare_watched(before, run(slow, training__starts_s=0.0))
    assert re.match(
        r"Inconclusive: 1\.00 times as fast .*, but only before\.json has starts of epochs, which "
        r"take 1\d\.\d % of its time\. Let both train for several epochs\.",
        first,
    )


@pytest.mark.parametrize(
    ("busy_shares", "ranks", "line"),
    [
        ((0.5, 0.95), 1, "used 0.1 of 2 cores before and 1.0 after, which changes the speed as"),
        ((None, 0.95), 1, "used an unknown number of 2 cores before and 1.0 after"),
        ((0.5, 0.5), 1, ""),
        ((None, None), 1, ""),
        ((0.95, 0.95), 2, ""),  # of which the other rank is one
    ],
)
def test_other_processes_are_named_where_they_take_cores(slow, busy_shares, ranks, line):
    same = {"ranks": ranks, "machine": {"cpu": "CPU", "cores": 2, "gpu": "cpu"}}
    cpu = {"cores": 2, "process": 0.4, "workers": 0.5}
    runs = (run(slow, **same, cpu=cpu | {"busy_share": share}) for share in busy_shares)
    text = "\n".join(compare_watched(*runs))
    assert ("Other processes" in text, line in text) == (bool(line), True)


def test_data_sets_of_another_class_are_named(slow):
    named = "Data set Slow before, Cached after: whether their samples are the same was not "
    text = "\n".join(compare_watched(run(slow), run(slow, training__loaders__0__dataset="Cached")))
    assert f"{named}checked." in text
    assert "Data set" not in "\n".join(compare_watched(run(slow), run(slow)))


def test_a_data_set_of_unknown_length_is_named(slow):
    unknown = run(slow, training__loaders__0__samples=None)
    assert (
        "The length of the data set is unknown: whether both runs train on as many samples was "
        "not checked."
    ) in compare_watched(unknown, unknown)


# --- arguments of loaders


@pytest.mark.alone
def test_workers_that_a_script_does_not_ask_for_are_tried(script, slow, tmp_path):
    path = tmp_path / "tried.json"
    words = ["--loader", "num_workers=2,pin_memory=False,persistent_workers=True"]
    status, _, errors = watch(script, "--json", path, "--compare", slow[0], *words)
    assert status == 0, errors
    lines = errors.splitlines()
    assert lines[0] == (
        "[labkit] Every DataLoader that the script makes gets num_workers=2, pin_memory=False, "
        "persistent_workers=True."
    )
    changed = "num_workers 0 → 2, persistent_workers False → True"
    assert f"[labkit] Changed in the DataLoader: {changed}." in lines
    assert float(re.search(r"Faster: ([\d.]+) times as fast", errors)[1]) > 1.3
    (loader,) = json.loads(path.read_text())["training"]["loaders"]
    assert (loader["workers"], loader["arguments"]["num_workers"]) == (2, 2)
    assert (loader["samples"], loader["batch_size"]) == (100, 1)


@pytest.mark.parametrize("how", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_processes_that_a_script_starts_get_them_and_are_compared(script, slow, tmp_path, how):
    path = tmp_path / "tried.json"
    words = ["--json", path, "--compare", slow[0], "--loader", "num_workers=1"]
    status, _, errors = watch(script, *words, how=how)
    assert status == 0, errors
    (loader,) = json.loads(path.read_text())["training"]["loaders"]
    assert loader["workers"] == 1
    assert errors.count(" times as fast [") == 1
    assert "changed nothing" not in errors


@pytest.mark.parametrize(
    ("how", "text", "note"),
    [
        ("none", "num_workers=2", "--loader changed nothing: the script made no DataLoader."),
        ("plain", "prefetch_factor=4,in_order=False",
         "--loader: a DataLoader without workers does not take prefetch_factor; add "
         "num_workers=N."),
    ],
)  # fmt: skip
def test_what_was_not_changed_is_printed(script, how, text, note):
    status, _, errors = watch(script, "--loader", text, how=how, steps=20)
    assert status == 0
    assert f"[labkit] {note}\n" in errors


def test_a_loader_without_workers_loses_what_only_workers_take(script):
    status, _, errors = watch(script, "--loader", "num_workers=0", how="workers", steps=20)
    assert status == 0, errors


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("num_workers=8", {"num_workers": 8}),
        (" num_workers = 8 , pin_memory=true", {"num_workers": 8, "pin_memory": True}),
        ("in_order=False,timeout=2.5", {"in_order": False, "timeout": 2.5}),
        ("multiprocessing_context=spawn", {"multiprocessing_context": "spawn"}),
        ("num_workers=0,persistent_workers=False", {"num_workers": 0, "persistent_workers": False}),
    ],
)
def test_arguments_are_read_as_python_has_them(text, arguments):
    assert read_arguments(text) == arguments


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--loader must be NAME=VALUE,..., got ''; such as num_workers=8,pin_memory=True"),
        ("num_workers", "--loader must be NAME=VALUE,..., got 'num_workers'"),
        ("workers=8", "--loader must name one of num_workers, pin_memory, .*, got 'workers'"),
        ("batch_size=8", "--loader must not change batch_size, which changes what is trained on"),
        ("sampler=None", "--loader must not change sampler, which changes"),
        ("num_workers=-1", "num_workers must be a whole number, 0 or more, got '-1'"),
        ("num_workers=2.5", "num_workers must be a whole number, 0 or more, got '2.5'"),
        ("prefetch_factor=0", "prefetch_factor must be a whole number, 1 or more, got '0'"),
        ("pin_memory=1", "pin_memory must be True or False, got '1'"),
        ("timeout=inf", "timeout must be a number of seconds, 0 or more, got 'inf'"),
        ("multiprocessing_context=thread",
         "multiprocessing_context must be one of fork, forkserver, spawn, got 'thread'"),
        ("num_workers=1,num_workers=2", "--loader must name num_workers once"),
        ("num_workers=0,prefetch_factor=4",
         "num_workers must be at least 1 with prefetch_factor, got 0"),
    ],
)  # fmt: skip
def test_arguments_that_no_loader_takes_are_refused(text, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        read_arguments(text)


def test_a_refused_argument_ends_the_command_before_the_script_runs(script):
    status, out, errors = watch(script, "--loader", "shuffle=False")
    assert (status, out) == (2, "")
    assert errors.startswith("labkit: --loader must not change shuffle, which changes what")
    assert errors.count("\n") == 1


def test_what_no_loader_takes_is_refused_as_by_torch():
    changed = LoaderArguments({"num_workers": 1}).replace_in(lambda self, dataset: None)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'dataset'"):
        changed(object())
