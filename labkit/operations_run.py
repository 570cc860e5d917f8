"""A run of the operations: blocks in fresh processes, a row per cell, saved block by block.

    run_operations() ─▶ run folder ─▶ block 1, block 2, … ─▶ Run
                        (run.json)    (worker: operations_timing) → trials.jsonl

Rows are of their own kind, "operation".  Main trap: a block is the repetition; the calls
inside it share a process and its luck, so they are averaged there and count as one.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from labkit import machine, stored
from labkit.launcher import Cancelled, Launcher
from labkit.operations import OPERATIONS, SIZES_PX
from labkit.operations_summary import KIND, SCHEMA
from labkit.operations_timing import PHOTOS, TWICE
from labkit.plan import check_blocks
from labkit.progress import Progress, RunProgress
from labkit.results import (
    Run,
    append_rows,
    create_run,
    explain_unwritable,
    hold,
    load_run,
    write_info,
)
from labkit.settings import MODES, Settings, pick
from labkit.trial import utc_now
from labkit.underway import alone

NAME = "operations"
QUICK_SIZES = 3
# Seconds that the calls of one cell take together, at least: 100 calls of a tenth of a
# millisecond are enough to look, and ten times as many to judge.
CELL_S = {"quick": 0.01, "document": 0.01, "full": 0.1}


@alone()
def run_operations(
    data: Path | str = "data/photos",
    mode: str = "quick",
    *,
    results: Path | str = "results",
    blocks: int | None = None,
    cancel: threading.Event | None = None,
    progress: Progress | bool = True,
    seed: int = 0,
) -> Run:
    """Time every library's way of every operation.

    Args:
        data: folder whose photographs are taken.
        mode: quick (3 blocks, the smaller sizes), document (1 block) or full (10 blocks, judged).
        results: folder that takes the run folder.
        blocks: repetitions; unset: the mode's.
        cancel: set by another thread to stop; finished blocks stay.
        progress: print a bar with ETA; or who is told instead.
        seed: of the choice of photographs and of the order.

    Returns:
        The run; `run.info["status"]` is finished or cancelled.

    Raises:
        ValueError: data, mode or blocks that cannot work, before anything is timed.
        TrialFailed: a block failed, as on a broken photograph; finished blocks stay.
    """
    chosen = pick(MODES, mode, "mode")
    blocks = check_blocks(chosen, blocks)
    settings = Settings(data=str(data), seed=seed)
    info = {
        "schema": SCHEMA,
        "kind": NAME,
        "experiment": NAME,
        "question": "Which library does which image operation faster?",
        "mode": mode,
        "blocks": blocks,
        "sizes_px": [list(size) for size in SIZES_PX[: QUICK_SIZES if mode == "quick" else None]],
        "photos": PHOTOS,
        "cell_s": CELL_S[mode],
        "order_seed": seed,
        "source": "[000] OpenCV vs PIL (kaggle yukia18): chart lost",
        "status": "running",
        "reason": "",
        "notes": [
            "pictures larger than the data's photographs are enlarged ones: smoother than a "
            "camera's, with fewer bytes per pixel to decode",
        ],
        "created_utc": utc_now(),
        "data": _describe_data(settings),
        "provenance": machine.provenance(),
    }
    folder = create_run(Path(results), info)
    with hold(folder):
        return _run_blocks(folder, info, cancel, progress)


@alone()
def resume_operations(
    folder: Path | str,
    *,
    cancel: threading.Event | None = None,
    progress: Progress | bool = True,
) -> Run:
    """Run the blocks that are missing of a run that was cancelled or killed.

    Args:
        folder: a run folder of `run_operations`.
        cancel: as in `run_operations`.
        progress: as in `run_operations`.

    Raises:
        FileNotFoundError: there is no run in this folder.
        ValueError: it is a run of something else, its data changed, or it began on another
            machine.
    """
    run = load_run(folder)
    if run.info.get("kind") != NAME:
        raise ValueError(
            f"folder must hold a run of operations, got one of {run.info['experiment']}; "
            "complete it with: labkit run --resume"
        )
    settings = Settings(data=run.info["data"]["folder"], seed=run.info["order_seed"])
    here = {"data": _describe_data(settings), "machine": machine.provenance()["machine_id"]}
    began = {"data": run.info["data"], "machine": run.info["provenance"]["machine_id"]}
    for name, value in here.items():
        if began[name] != value:
            raise ValueError(
                f"{name} must be what the run began with ({began[name]}), got {value}; "
                "start a new run"
            )
    with hold(run.folder):
        info = load_run(run.folder).info  # as whoever had it last left it
        return _run_blocks(run.folder, info, cancel, progress)


def _describe_data(settings: Settings) -> dict[str, object]:
    stored.open_reader.cache_clear()  # a notebook lives long, and its data may change
    reader = stored.open_source(settings)
    if len(reader) < PHOTOS:
        raise ValueError(
            f"data must hold at least {PHOTOS} photographs, got {len(reader)} in {settings.data}; "
            "use another folder"
        )
    return {
        "folder": settings.data,
        "images": len(reader),
        "manifest_hash": reader.manifest_hash,
    }


def _run_blocks(
    folder: Path,
    info: dict[str, object],
    cancel: threading.Event | None,
    progress: Progress | bool,
) -> Run:
    """Run what is missing; finished blocks stay whatever happens."""

    def save(**changes: object) -> None:
        info.update(changes)
        write_info(folder, info)

    shown = RunProgress(NAME, shown=progress) if isinstance(progress, bool) else progress
    shown.begin(folder)
    missing = [block for block in range(info["blocks"]) if not _is_complete(folder, info, block)]
    save(status="running", reason="")
    try:
        with explain_unwritable(folder):
            launcher = Launcher(folder / "worker.log", fork=machine.can_fork())
        with launcher:
            shown.start(total=info["blocks"], done=info["blocks"] - len(missing))
            for block in missing:
                if cancel is not None and cancel.is_set():  # before a process is started for it
                    raise Cancelled
                shown.next(f"block {block + 1}")
                append_rows(folder, _block_rows(launcher, info, block, cancel))
                shown.advance()
    except Cancelled:
        save(status="cancelled")
    except KeyboardInterrupt:
        save(status="cancelled")
        shown.say(f"cancelled; complete it with: labkit run --resume {folder}")
        raise
    except Exception as error:
        save(status="failed", reason=str(error))
        raise
    else:
        save(status="finished")
    finally:
        shown.close()
    return load_run(folder)


def _block_rows(
    launcher: Launcher, info: Mapping, block: int, cancel: threading.Event | None
) -> list[dict[str, object]]:
    started_utc = utc_now()
    rows = launcher.run(
        "time_operations",
        {
            "settings": asdict(Settings(data=info["data"]["folder"], seed=info["order_seed"])),
            "sizes_px": info["sizes_px"],
            "cell_s": info["cell_s"],
            "order_seed": f"{info['order_seed']}/{block}",
        },
        cancel,
    )
    same = {
        "kind": KIND,
        "schema": SCHEMA,
        "block": block,
        "machine_id": info["provenance"]["machine_id"],
        "started_utc": started_utc,
    }
    return [{**same, **row} for row in rows]


def _is_complete(folder: Path, info: Mapping, block: int) -> bool:
    """A crash may have left half of a block's lines; it is then run again as a whole."""
    there = {
        (row["operation"], row["library"], row["role"], row["size"])
        for row in load_run(folder).rows
        if row["block"] == block
    }
    return len(there) == (len(OPERATIONS) + (TWICE in OPERATIONS)) * len(info["sizes_px"])
