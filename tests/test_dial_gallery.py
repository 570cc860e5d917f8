"""Every dial in one place: its chart where there is a run, else the line that runs it."""

from fakes import fake_info, fake_trials

from labkit import dial_charts
from labkit.dials import DIALS
from labkit.results import append_trial, create_run


def make_logs(results, *, status="finished"):
    times = {"never": 1.0, "every step": 1.3}
    variants = {"never": {"report_every": 0}, "every step": {"report_every": 1}}
    info = {**fake_info([*times], experiment="logs", status=status), "variants": variants}
    folder = create_run(results, info)
    for trial in fake_trials(times):
        append_trial(folder, trial)


def test_a_finished_run_has_its_chart_and_the_others_the_line_that_runs_them(tmp_path):
    make_logs(tmp_path)
    shown = dial_charts(tmp_path)
    assert shown._repr_html_().count("<img ") == 1
    for name in DIALS:
        assert (f"labkit run {name}" in shown._repr_html_()) == (name != "logs")
        assert (f"{name}: not run; run it with: labkit run {name}" in repr(shown)) == (
            name != "logs"
        )
    assert "every step: 1." in repr(shown)


def test_a_run_that_broke_off_is_not_shown(tmp_path):
    make_logs(tmp_path, status="failed")
    assert "<img " not in dial_charts(tmp_path)._repr_html_()
