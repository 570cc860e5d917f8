"""What a panel shows, as HTML: a run's result, its last trial, progress, errors, downloads.

    Run, Job, files ─▶ strings of HTML ─▶ the panel's widgets

Colours are JupyterLab's own, so that both themes are readable.  Main trap: labels, reasons and
paths may hold any text, so all of it is escaped here, whatever it is.
"""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Sequence
from functools import lru_cache
from html import escape
from pathlib import Path

from labkit import units
from labkit.contracts import Trial
from labkit.machine import hardware
from labkit.panel.job import Job
from labkit.report import bars as figures
from labkit.report import charts, side_by_side, table
from labkit.runs.store import SHARED, StoredRun, is_under_way, load_run, read_info

STYLE = """<style>
.labkit-panel { color: var(--jp-ui-font-color1, #1a1a1a); padding: 8px; max-width: 1100px; }
.labkit-panel .widget-html-content { line-height: 1.45; }
.labkit-panel h3 { margin: 0 0 4px; }
.labkit-panel .labkit-help { color: var(--jp-ui-font-color1, #333); font-size: 90%; }
.labkit-panel .labkit-form { display: flex; flex-flow: row wrap; align-items: stretch; }
.labkit-panel .labkit-field { width: 330px; max-width: 100%; margin: 2px 14px 2px 0; }
.labkit-panel .labkit-variants .widget-checkbox { margin-right: 14px; }
.labkit-panel .labkit-result, .labkit-panel .labkit-trials { overflow-x: auto; }
.labkit-panel img { max-width: 100%; height: auto; }
.labkit-panel .labkit-field .labkit-help { line-height: 1.25; margin-left: 4px; }
.labkit-panel .widget-label { color: var(--jp-ui-font-color1, #1a1a1a); }
.labkit-share { white-space: nowrap; margin-right: 6px; }
.labkit-strip-bar { display: flex; height: 16px; width: 100%; max-width: 640px;
  border: 1px solid var(--jp-ui-font-color1, #333); }
.labkit-startup { background: repeating-linear-gradient(0deg, #8a8a8a 0 2px, #eee 2px 5px); }
.labkit-wait { background: repeating-linear-gradient(45deg, #e9a46a 0 4px, #fff1e2 4px 8px); }
.labkit-transfer { background: #1a1a1a; }
.labkit-compute { background: #7fa8c9; }
.labkit-key { display: inline-block; width: 12px; height: 12px; margin: 0 4px 0 10px;
  border: 1px solid var(--jp-ui-font-color1, #333); vertical-align: -1px; }
.labkit-panel summary { cursor: pointer; }
.labkit-error pre { white-space: pre-wrap; color: inherit; }
.labkit-panel table { border-collapse: collapse; margin: 6px 0; }
.labkit-panel th, .labkit-panel td { padding: 3px 9px; text-align: left; border: none;
  border-bottom: 1px solid var(--jp-border-color1, #bbb); }
.labkit-panel .labkit-progress { width: 100%; max-width: 640px; }
.labkit-panel a { color: var(--jp-content-link-color, #0b57d0); text-decoration: underline; }
</style>"""

REAL = {"real storage"}  # goes without saying
NOTHING = "<div>no trial is finished yet</div>"
DOWNLOADABLE_BYTES = 40_000_000  # as a link; more is only named
HELD = 8  # drawn results that are kept, for panels that show the same one


def help_line(text: str) -> str:
    """Show a setting's help under its control."""
    return f'<div class="labkit-help">{escape(text)}</div>'


def question(text: str) -> str:
    """Show what the panel is about."""
    return f"<h3>{escape(text)}</h3>"


def status(state: str, progress: str = "") -> str:
    """Show what is going on, announced to screen readers."""
    said = f"{state}: {progress}" if progress else state
    return f'<div role="status" aria-live="polite">{escape(said)}</div>'


def lines(sentences: Sequence[str]) -> str:
    """Show sentences below each other."""
    return "".join(f"<div>{escape(sentence)}</div>" for sentence in sentences)


def error(message: str, traceback_text: str = "") -> str:
    """Show an error: one line that says what to do, the rest folded."""
    if not message:
        return ""
    folded = (
        f"<details><summary>traceback</summary><pre>{escape(traceback_text)}</pre></details>"
        if traceback_text
        else ""
    )
    return f'<div role="alert"><strong>{escape(message)}</strong></div>{folded}'


def strip(trial: Trial | None) -> str:
    """Show how the host spent a trial, and how busy the device was.

    Args:
        trial: the last one that was measured; None: none yet.
    """
    if trial is None or not trial.epochs:
        return ""
    shares = {
        name: sum(getattr(epoch, f"{name}_s") for epoch in trial.epochs) / trial.time_s
        for name in ("startup", "wait", "transfer")
    }
    shares["compute"] = max(0.0, 1 - sum(shares.values()))
    bar = "".join(
        f'<div class="labkit-{name}" style="width:{100 * share:.2f}%"></div>'
        for name, share in shares.items()
    )
    said = [
        f'<span class="labkit-key labkit-{name}"></span>{words} {units.percent(shares[name])}'
        for name, words in _PHASES.items()
    ]
    if trial.gpu_util_mean is not None:
        said.append(
            f"GPU-util {units.percent(trial.gpu_util_mean)}, at 0 % for "
            f"{units.percent(trial.gpu_util_zero_share)} of the samples"
        )
    if trial.emulated_busy_share is not None:
        said.append(f"emulated device busy {units.percent(trial.emulated_busy_share)}")
    name = f"{trial.variant} {trial.role}".rstrip()
    parts = " ".join(f'<span class="labkit-share">{part}</span>' for part in said)
    return (
        f"<div>last trial, {escape(name)}: {parts}</div>"
        f'<div class="labkit-strip-bar" aria-hidden="true">{bar}</div>'
    )


_PHASES = {
    "startup": "start-up of the loader",
    "wait": "wait for data",
    "transfer": "transfer",
    "compute": "compute and everything else",
}


def last_trial(run: StoredRun) -> Trial | None:
    """Give the trial that was measured last."""
    return next((trial for trial in reversed(run.trials) if trial.status == "ok"), None)


def trials(run: StoredRun, *, is_open: bool) -> str:
    """List every trial, the newest first: what grows while a run goes on.

    Args:
        run: as far as it has come.
        is_open: whether the list is unfolded.
    """
    rows = [_trial_cells(trial) for trial in reversed(run.trials)]
    if not rows:
        return ""
    header = "".join(f'<th scope="col">{name}</th>' for name in _TRIAL_COLUMNS)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>" for cells in rows
    )
    return (
        f"<details{' open' if is_open else ''}><summary>"
        f"{units.count(len(rows), 'trial')}, the newest first</summary>"
        f"<table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table></details>"
    )


_TRIAL_COLUMNS = ("block", "variant", "all epochs", "rate", "in memory before", "status")


def _trial_cells(trial: Trial) -> list[str]:
    name = [str(trial.block + 1), f"{trial.variant} {trial.role}".rstrip()]
    if trial.status != "ok":
        return [
            *name,
            units.UNKNOWN,
            units.UNKNOWN,
            units.UNKNOWN,
            f"{trial.status}: {trial.reason}",
        ]
    return [
        *name,
        units.seconds(trial.time_s),
        units.rate(trial.images / trial.time_s),
        units.percent(trial.cache_proof.get("resident_share_before")),
        trial.status,
    ]


def result(folder: Path) -> str:
    """Show a run: its chart and its table; as far as it has come, if it is under way."""
    # Whatever changes a run's folder changes one of these files.
    stamps = tuple(
        path.stat().st_mtime_ns for path in sorted(folder.glob("*.json*")) if path.exists()
    )
    return _result(folder, stamps)


@lru_cache(maxsize=HELD)
def _result(folder: Path, stamps: tuple[int, ...]) -> str:
    run = load_run(folder)
    if last_trial(run) is None:
        return NOTHING
    shown = figures.mimebundle(charts.chart(run.summary))[0]["text/html"]
    return f"{shown}{table.table(run.summary)._repr_html_()}"


def beside(folders: Sequence[Path]) -> str:
    """Show several runs, each against its own baseline."""
    runs = [load_run(folder) for folder in folders]
    shown = figures.mimebundle(side_by_side.side_by_side(runs))[0]["text/html"]
    return f"{shown}{side_by_side.compare_table(runs)._repr_html_()}"


def status_of(folder: Path) -> str:
    """Say how a run stands; one whose process was killed still calls itself running."""
    status = str(read_info(folder)["status"])
    return "stopped" if status == "running" and not is_under_way(folder) else status


def history_line(folder: Path) -> str:
    """Write a run as one line of a list: when, mode, status, what stood in, where from."""
    info = read_info(folder)
    parts = [units.minute(info["created_utc"]), info["mode"], status_of(folder)]
    if info.get("protocol", "corrected") != "corrected":
        parts.append(info["protocol"])
    devices = {str(values.get("device")) for values in info.get("variants", {}).values()}
    media = (str(facts["label"]).split("(")[0] for facts in (info.get("storages") or {}).values())
    parts += sorted(devices - {"None"}) + sorted({f"{label} storage" for label in media} - REAL)
    if SHARED in info:
        parts.append(hardware.describe(info["provenance"]))
    return " · ".join([*parts, folder.name.split("-")[-1]])


def download(path: Path) -> str:
    """Say where a file is, with a link that downloads it."""
    size_bytes = path.stat().st_size
    said = f"saved {escape(str(path.resolve()))} ({units.count_bytes(size_bytes)})"
    if size_bytes > DOWNLOADABLE_BYTES:
        return f"<div>{said}</div>"
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    # A link to the file would need the server's root, which a kernel does not know.
    data = base64.b64encode(path.read_bytes()).decode()
    link = (
        f'<a download="{escape(path.name)}" href="data:{kind};base64,{data}">'
        f"download {escape(path.name)}</a>"
    )
    return f"<div>{said} · {link}</div>"


def copy_button(text: str) -> str:
    """Offer to put a text on the clipboard, where the browser allows it."""
    put = (
        "navigator.clipboard && navigator.clipboard.writeText(this.dataset.text)"
        ".then(() => { this.textContent = 'copied' })"
    )
    return (
        f'<button class="jupyter-button" data-text="{escape(text)}" onclick="{put}">'
        "put it on the clipboard</button>"
    )


def explain(job: Job) -> str:
    """Show why a job failed; empty where it did not."""
    return error(one_line(job.error), job.traceback) if job.error is not None else ""


def one_line(problem: BaseException) -> str:
    """Write an exception as a person should read it."""
    said = " ".join(str(problem).split())
    is_ours = isinstance(problem, ValueError | OSError | RuntimeError | ImportError)
    return said if said and is_ours else f"{type(problem).__name__}: {said}"
