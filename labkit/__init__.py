"""labkit: why is my GPU at 0 %, and what fixes it?  The public names, nothing else."""

from labkit.diagnosis.call_graph import profile as call_graph
from labkit.diagnosis.diagnose import diagnose
from labkit.diagnosis.gpu_util import gpu_util, polled_table
from labkit.diagnosis.timeline import record_timeline
from labkit.diagnosis.watch import watch
from labkit.example import example_loop
from labkit.experiments.catalog import CATALOG
from labkit.experiments.largest_batch import largest_batch
from labkit.experiments.request import choose, experiment
from labkit.experiments.tuning import tune
from labkit.panel.panel import panel
from labkit.parts.decoding import DECODERS
from labkit.parts.devices import DEVICES
from labkit.parts.loading import LOADERS, ThreadLoader
from labkit.parts.packing import PACKINGS
from labkit.parts.prefetching import PREFETCHERS
from labkit.parts.preprocessing import PREPROCESSORS
from labkit.parts.storage import STORAGES
from labkit.parts.training import LOSSES, STEPS, Step
from labkit.report.costs import costs
from labkit.report.findings import findings
from labkit.report.predictions import predictions
from labkit.report.report import write_report
from labkit.report.run import (
    chart,
    claims,
    compare_table,
    describe_data,
    dial_chart,
    disputes,
    doctor,
    epoch_chart,
    forecast,
    newest_run,
    recipe,
    save,
    side_by_side,
    table,
)
from labkit.report.savings import savings
from labkit.report.share import open_shared, pack
from labkit.report.timeline_chart import timeline_chart
from labkit.runs.experiment import Experiment, resume, run
from labkit.runs.store import Run, find_run, list_runs, load_run
from labkit.settings import Settings, vary

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
    "call_graph",
    "chart",
    "choose",
    "claims",
    "compare_table",
    "costs",
    "describe_data",
    "diagnose",
    "dial_chart",
    "disputes",
    "doctor",
    "epoch_chart",
    "example_loop",
    "experiment",
    "find_run",
    "findings",
    "forecast",
    "gpu_util",
    "largest_batch",
    "list_runs",
    "load_run",
    "newest_run",
    "open_shared",
    "pack",
    "panel",
    "polled_table",
    "predictions",
    "recipe",
    "record_timeline",
    "resume",
    "run",
    "save",
    "savings",
    "side_by_side",
    "table",
    "timeline_chart",
    "tune",
    "vary",
    "watch",
    "write_report",
]
