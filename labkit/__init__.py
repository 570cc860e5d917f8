"""labkit: why is my GPU at 0 %, and what fixes it?  The public names, nothing else."""

from labkit.catalog import CATALOG, experiment
from labkit.contracts import Annotation, Sample
from labkit.experiment import Experiment, resume, run
from labkit.notebook import chart, describe_data, doctor, save, summarize, table, write_page
from labkit.parts.decoding import DECODERS
from labkit.parts.devices import DEVICES, PROFILES
from labkit.parts.loading import LOADERS
from labkit.parts.packing import PACKINGS
from labkit.parts.prefetching import PREFETCHERS
from labkit.parts.preprocessing import PREPROCESSORS, Preprocessor
from labkit.parts.storage import STORAGES
from labkit.parts.training import STEPS, Step
from labkit.results import Run, find_run, list_runs, load_run
from labkit.settings import MODES, Settings, vary
from labkit.trial import Epoch, Trial

__all__ = [
    "CATALOG",
    "DECODERS",
    "DEVICES",
    "LOADERS",
    "MODES",
    "PACKINGS",
    "PREFETCHERS",
    "PREPROCESSORS",
    "PROFILES",
    "STEPS",
    "STORAGES",
    "Annotation",
    "Epoch",
    "Experiment",
    "Preprocessor",
    "Run",
    "Sample",
    "Settings",
    "Step",
    "Trial",
    "chart",
    "describe_data",
    "doctor",
    "experiment",
    "find_run",
    "list_runs",
    "load_run",
    "resume",
    "run",
    "save",
    "summarize",
    "table",
    "vary",
    "write_page",
]
