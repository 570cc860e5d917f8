"""labkit: why is my GPU at 0 %, and what fixes it?  The public names, nothing else."""

from typing import TYPE_CHECKING

from labkit.diagnosis.diagnose import diagnose
from labkit.diagnosis.live import diagnosing
from labkit.diagnosis.tune import tune
from labkit.diagnosis.watch import watch
from labkit.install import why_no_lab
from labkit.nccl import read_nccl_log

if TYPE_CHECKING or not (_why_no_lab := why_no_lab()):
    from labkit.diagnosis.call_graph import call_graph
    from labkit.diagnosis.example import example_loop
    from labkit.diagnosis.timeline import gpu_util, record_timeline
    from labkit.experiments.catalog import CATALOG
    from labkit.experiments.largest_batch import largest_batch
    from labkit.experiments.request import choose, experiment
    from labkit.experiments.sweep import sweep
    from labkit.panel.view import advise_form, panel
    from labkit.parts.decoding import DECODERS
    from labkit.parts.devices import DEVICES
    from labkit.parts.loading import LOADERS
    from labkit.parts.packing import PACKINGS
    from labkit.parts.prefetching import PREFETCHERS
    from labkit.parts.preprocessing import PREPROCESSORS
    from labkit.parts.storage import STORAGES
    from labkit.parts.training import LOSSES, STEPS, Step
    from labkit.photos.make import make_photos
    from labkit.recipes.thread_loader import ThreadLoader
    from labkit.report.advise import advise
    from labkit.report.charts import compare
    from labkit.report.charts import timeline as timeline_chart
    from labkit.report.doctor import describe_data, doctor
    from labkit.report.run import (
        Run,
        claims,
        find_run,
        newest_run,
        open_shared,
        report,
        resume,
        roofline,
        run,
    )
    from labkit.runs.calibrated_device import calibrate
    from labkit.runs.experiment import Experiment, Variant
    from labkit.runs.forecasts import forecast
    from labkit.runs.store import list_runs
    from labkit.settings import Settings

    table, chart = Run.table, Run.chart
else:

    def __getattr__(name: str) -> object:
        if name in __all__:
            raise ImportError(f"labkit.{name} {_why_no_lab}")
        raise AttributeError(f"module 'labkit' has no attribute {name!r}")


__all__ = [
    "CATALOG",
    "DECODERS",
    "DEVICES",
    "LOADERS",
    "LOSSES",
    "PACKINGS",
    "PREFETCHERS",
    "PREPROCESSORS",
    "STEPS",
    "STORAGES",
    "Experiment",
    "Run",
    "Settings",
    "Step",
    "ThreadLoader",
    "Variant",
    "advise",
    "advise_form",
    "calibrate",
    "call_graph",
    "chart",
    "choose",
    "claims",
    "compare",
    "describe_data",
    "diagnose",
    "diagnosing",
    "doctor",
    "example_loop",
    "experiment",
    "find_run",
    "forecast",
    "gpu_util",
    "largest_batch",
    "list_runs",
    "make_photos",
    "newest_run",
    "open_shared",
    "panel",
    "read_nccl_log",
    "record_timeline",
    "report",
    "resume",
    "roofline",
    "run",
    "sweep",
    "table",
    "timeline_chart",
    "tune",
    "watch",
]
