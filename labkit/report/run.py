"""What a notebook or a shell shows of a run: its table, charts, files and the page of all runs.

Everything is derived from the rows and can be made again at any time.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.analysis.forecast import Forecast
from labkit.analysis.forecast import forecast as expect
from labkit.analysis.summary import Summary
from labkit.claims.disputes import Disputes
from labkit.claims.disputes import answers as find_disputed
from labkit.claims.ledger import answers, claims_table
from labkit.experiments.catalog import CATALOG, disks
from labkit.experiments.request import Request
from labkit.files import write_whole
from labkit.machine import hardware
from labkit.parts import decoding
from labkit.report import bars as figures
from labkit.report import charts, report_words
from labkit.report import table as report
from labkit.report.captions import self_checks, stand_ins
from labkit.report.costs import costs
from labkit.report.dial_chart import dial_chart as draw_dial
from labkit.report.dial_chart import find_series
from labkit.report.epoch_chart import epoch_chart as draw_epochs
from labkit.report.findings import findings
from labkit.report.page import Section, page
from labkit.report.predictions import has_combinations, predictions
from labkit.report.recipe import recipe as write_recipe
from labkit.report.side_by_side import compare_table as draw_table_of_runs
from labkit.report.side_by_side import side_by_side as draw_side_by_side
from labkit.resolve import open_source
from labkit.runs.experiment import Experiment
from labkit.runs.kinds import KINDS
from labkit.runs.schedule import check_blocks
from labkit.runs.store import Run, earlier_runs, explain_unwritable, newest_runs
from labkit.settings import AS_PUBLISHED, MODES, Settings, pick

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from labkit.report.frame import Frame

PAGE = "index.html"
# Experiments whose epochs tell something apart, so that they get a second chart.
EPOCHS_APART = ("storage",)


def table(run: Run, detail: bool = False) -> pd.DataFrame:
    """Show a run's table: its few main columns, or with `detail` everything that was measured."""
    return report.table(run.summary, detail)


def text(run: Run) -> str:
    """Write a run's table for a terminal."""
    return report.text(run.summary)


def markdown(run: Run) -> str:
    """Write a run's table as GitHub's Markdown, with its conditions and notes."""
    return report.markdown(run.summary)


def rows(run: Run) -> list[dict[str, object]]:
    """List a run's rows as JSON can hold them."""
    return report.rows(run.summary)


def chart(run: Run) -> Figure:
    """Show a run's chart."""
    return charts.chart(run.summary)


def epoch_chart(run: Run) -> Figure:
    """Show a run's epochs one by one, with what was in memory and what came from a disk.

    Args:
        run: of an experiment.
    """
    return draw_epochs(run.summary)


def dial_chart(run: Run) -> Figure:
    """Draw normalized time over how often the training loop does something.

    Args:
        run: of an experiment with a dial, as checkpoints, logs, metric_reports or evaluation.

    Raises:
        ValueError: its experiment has no dial.
    """
    if not run.info.get("dial"):
        raise ValueError(
            f"run must be of an experiment with a dial, got {run.info['experiment']}; "
            "run checkpoints, logs, metric_reports or evaluation"
        )
    return draw_dial(run.info, run.summary)


def side_by_side(runs: Sequence[Run]) -> Figure:
    """Show runs of one experiment beside one another, each against its own baseline.

    Args:
        runs: one to six, of any machine and mode; see `side_by_side.side_by_side`.
    """
    return draw_side_by_side(runs)


def compare_table(runs: Sequence[Run]) -> Frame:
    """Show runs of one experiment beside one another, a column each; see `side_by_side`."""
    return draw_table_of_runs(runs)


def more_tables(run: Run) -> dict[str, Frame]:
    """Return what else a run supports beside its table: title -> table, without empty ones."""
    if run.info.get("groups"):
        return {}
    found = {"Cold, warm and in memory": findings(run), "What storing costs": costs(run)}
    if has_combinations(run):
        found["Do the savings add up?"] = predictions(run)
    return {title: frame for title, frame in found.items() if len(frame)}


def recipe(run: Run, variant: str | None = None) -> str:
    """Return a run's winner as a plain PyTorch program; see `recipe.recipe`."""
    return write_recipe(run, variant)


def forecast(
    experiment: Experiment,
    mode: str = "full",
    *,
    blocks: int | None = None,
    results: Path | str = "results",
) -> Forecast:
    """Say before a run how long it will take and the smallest effect it can see.

    Args:
        experiment: what would be compared.
        mode: quick, document or full.
        blocks: repetitions; unset: the mode's.
        results: folder with earlier runs, whose noise is taken.

    Returns:
        Shows itself as a sentence.
    """
    chosen = pick(MODES, mode, "mode")
    wanted = {**experiment.variants, **(experiment.in_full if chosen.judged else {})}
    machine_id = hardware.provenance()["machine_id"]
    earlier = earlier_runs(results, experiment.name, machine_id=machine_id, mode=mode)
    return expect(
        (run.summary for run in earlier),
        mode=mode,
        blocks=check_blocks(chosen, blocks),
        variants={label: asdict(settings) for label, settings in wanted.items()},
        baselines=experiment.grouped(wanted).get("baselines", {"": experiment.baseline}).values(),
        trial_s=KINDS[experiment.kind].trial_s(mode),
    )


def claims(results: Path | str = "results") -> pd.DataFrame:
    """Show every claim of the documents, and what this machine's runs say of it."""
    return claims_table(answers(results)).drop(columns="run")


def disputes(results: Path | str = "results", *, numbers: Sequence[int] = ()) -> Disputes:
    """Show what is disputed, who says what, and what this machine's runs and counts say of it.

    Args:
        results: folder that holds all results.
        numbers: which disputes; none: all.

    Returns:
        Shows itself; a tuple of the rows of `disputes.answers`.
    """
    return Disputes(find_disputed(results, numbers=numbers))


def newest_run(name: str, results: Path | str = "results") -> Run | None:
    """Give an experiment's newest finished run; None where there is none."""
    return newest_runs(results, _is_finished).get(name)


def save(run: Run) -> list[Path]:
    """Write a run's derived files into its folder.

    Returns:
        table.csv, then .png, .svg and .pdf of each chart.
    """
    csv = run.folder / "table.csv"
    with explain_unwritable(run.folder):
        write_whole(csv, table(run, detail=True).to_csv())
        drawn = _draw(run.info, run.summary)
        files = [figures.save(figure, run.folder / name) for name, figure in drawn.items()]
    return [csv, *itertools.chain(*files)]


def write_page(results: Path | str = "results") -> Path:
    """Write one self-contained page: the claims, and every experiment's newest finished run.

    Args:
        results: folder that holds all results.

    Raises:
        ValueError: there is no run yet.
    """
    newest = newest_to_show(results)
    if not newest:
        raise ValueError(
            f"results must hold at least one run, got none in {results}; "
            "make one with: labkit run prefetching"
        )
    sections = [section(run) for run in newest]
    with explain_unwritable(results):
        return write_whole(Path(results) / PAGE, page(sections, answers(results)))


def doctor(data: str | None = None) -> pd.DataFrame:
    """Show what this machine has, and what will be skipped and why.

    Args:
        data: probe this folder's disk too, if it is there.
    """
    from labkit.report.frame import Frame

    folders = {"data": Path(data)} if data and Path(data).is_dir() else {}
    return Frame(doctor_rows(folders), columns=["", "here", "remark"]).set_index("")


def doctor_rows(folders: Mapping[str, Path]) -> list[tuple[str, str, str]]:
    """List what this machine has, what will stand in for a hard disk, and which decoders work.

    Args:
        folders: name -> directory to look at, beside those of labkit.toml.
    """
    chosen = disks()
    rows = hardware.doctor_report(folders)
    missing = decoding.why_not()
    built = decoding.jpeg_back_ends().items()
    return [
        *rows,
        ("hard disk", chosen.hdd, "; ".join(chosen.notes)),
        ("decoders", ", ".join(f"{name} ({by})" for name, by in built if name not in missing), ""),
        *((f"decoder {name}", "skipped", reason) for name, reason in missing.items()),
    ]


def describe_data(data: str) -> pd.DataFrame:
    """Show what a folder of images holds.

    Args:
        data: a COCO layout, or any tree of .jpg/.jpeg files.

    Raises:
        ValueError: there are no images.
    """
    from labkit.report.frame import Frame

    reader = open_source(Settings(data=data))
    made = " (synthesized: this folder has none)" if reader.boxes == "synthesized" else ""
    facts = {
        "images": len(reader),
        "boxes": reader.boxes + made,
        "manifest": reader.manifest_hash[:12],
    }
    return Frame(facts.items(), columns=["", data]).set_index("")


def _draw(info: Mapping[str, object], summary: Summary) -> dict[str, Figure]:
    """Draw all charts of a run of epochs: what its files are called -> figure."""
    drawn = {"chart": charts.chart(summary)}
    if summary.experiment in EPOCHS_APART:
        drawn["epochs"] = draw_epochs(summary)
    if find_series(info, summary):
        drawn["dial"] = draw_dial(info, summary)
    return drawn


def _is_as_published(info: Mapping[str, object]) -> bool:
    return info.get("protocol") == AS_PUBLISHED


def _is_finished(info: Mapping[str, object]) -> int | None:
    # A run as in the document answers another question; it must not hide a corrected one.
    return None if info["status"] != "finished" else int(not _is_as_published(info))


def newest_to_show(results: Path | str) -> list[Run]:
    """Take every experiment's run to show: in the documents' order, a person's own after it.

    A run as in the document stands beside the corrected one.
    """
    # Where nothing is finished, what there is.
    newest = newest_runs(results, lambda info: 0) | newest_runs(results, _is_finished)
    faithful = newest_runs(
        results,
        lambda info: 0 if _is_as_published(info) and info["status"] == "finished" else None,
    )
    known = [name for name in CATALOG if name in newest]
    shown = []
    for name in [*known, *sorted(set(newest) - set(known))]:
        shown.append(newest[name])
        if name in faithful and faithful[name].folder != newest[name].folder:
            shown.append(faithful[name])
    return shown


def section(run: Run) -> Section:
    """Gather what a page shows of a run."""
    name = f"{run.folder.parent.name}/{run.folder.name}"
    request = Request.read(run.info)
    unfinished = list(filter(None, [report_words.whole(run.info)]))
    summary = run.summary
    warnings = stand_ins(summary)
    title = summary.question
    if _is_as_published(run.info):
        title += f" ({AS_PUBLISHED})"
    return Section(
        title=title,
        run=name,
        warnings=[*unfinished, *warnings],
        conditions=report.table_conditions(summary)[1 if warnings else 0 :],
        setup=report_words.setup(run.info),
        differences=report_words.differences(run.info),
        hardware=report_words.hardware(run.info),
        figures=_draw(run.info, summary),
        header=report.table_header(summary),
        cells=report.table_cells(summary),
        second_lines=report.second_lines(summary),
        checks=self_checks(summary),
        tables=more_tables(run),
        notes=summary.notes,
        command=request.command_line(),
        code=request.python_code(),
        info=run.info,
    )
