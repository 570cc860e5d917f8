"""The contents of a run and its rows: `RunInfo`, and a `Trial` or an `OperationTrial` per row."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self

from labkit.settings import CORRECTED, Settings, field_kinds, with_new_names

# Format history
#   1  first version
#   2  run; medium; file_bytes in cache_proof, major_faults and gpu clocks in disturbance;
#      last_ids_crc and last_means in epochs
#   3  peak_pss_bytes, peak_shm_bytes, gpu_allocated_bytes, gpu_reserved_bytes, first_loss;
#      waits_s and callbacks_s in epochs
#   4  group
#   5  resident_shares_before in cache_proof: one per epoch, where `cached` is set;
#      unreadable_images
#   6  arrivals_s in epochs
#   7  hardware, in place of the labels storage, accelerator and network
#      rows of operations: image_s and calls in place of epochs and all that only epochs have
SCHEMA = 7

Status = Literal["ok", "skipped", "failed", "cancelled"]


@dataclass(frozen=True)
class Hardware:
    """A device, storage or network that trials use: real, or simulated."""

    kind: Literal["device", "storage", "network"]
    how: Literal["real", "unconfirmed", "simulated", "throttled", "modelled"] = "real"
    """Throttled and modelled disks are simulated, too; storage that is called simulated is remote.
    "unconfirmed": its name may be wrong."""
    details: str = ""
    """"460 images/s" for a simulated GPU, "81 reads/s" for a throttled disk, "cpu"."""

    @property
    def is_simulated(self) -> bool:
        """Whether the hardware is simulated, in whichever way."""
        return self.how not in ("real", "unconfirmed")

    @property
    def name(self) -> str:
        """Name without details: "simulated GPU", "throttled storage", "real storage"."""
        names = {"device": "simulated GPU", "storage": "simulated remote storage"}
        if self.how == "simulated" and self.kind in names:
            return names[self.kind]
        return f"{self.how} {self.kind}"

    def __str__(self) -> str:
        if self.how == "real":
            return self.details or self.how
        if not self.details:
            return self.name
        is_device = self.kind == "device"
        return f"{self.name}, {self.details}" if is_device else f"{self.name} ({self.details})"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about a variant's parts that matter when variants are compared; kept in `run.json`."""

    repeats_one_batch: bool = False
    """Whether every step gets the same batch: nothing is loaded in the epochs, or handed over."""
    trains_nothing: bool = False
    """Whether the step does nothing."""
    steps_short: int = 0
    """Number of steps left out of every epoch, in runs of earlier versions."""
    has_own_order: bool = False
    """Whether the images of an epoch come in another order than with other loaders."""
    order_varies: bool = False
    """Whether batches come as they get ready, in another order each time."""
    loads_outside: bool = False
    """Whether the loader reads, decodes and preprocesses by itself, and rounds in its own way."""
    decodes_scaled: bool = False
    """Whether the decoder returns fewer pixels than the image has."""
    other_pixels: str = ""
    """How the decoder's pixels differ by design from those of others, as "in gray"."""
    stores_fewer_pixels: bool = False
    """Whether images are stored with fewer pixels, for random crops."""
    stays_in_memory: bool = False
    """Whether the files are always in memory."""
    is_on_cpu: bool = False
    is_simulated: bool = False
    """Whether the device is simulated."""
    finishes_on_device: bool = False
    """Whether the device finishes the preprocessing."""

    @property
    def leaves_out(self) -> frozenset[str]:
        """The work that the variant does not do: "loading", "computing"."""
        left_out = {"loading": self.repeats_one_batch, "computing": self.trains_nothing}
        return frozenset(name for name, is_left_out in left_out.items() if is_left_out)


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One timed epoch, from creating the iterator to the final synchronize."""

    epoch_s: float
    startup_s: float
    """Time to create the iterator: start worker processes and prefetch threads."""
    first_batch_s: float
    """Time from the start of the epoch until the first batch was on the device."""
    wait_s: float
    """Time that the host waits for data, whatever the device does meanwhile; without start-up."""
    transfer_s: float
    """Time that the host takes to hand batches to the device."""
    forward_s: float | None
    """Host time of the forward pass; None where the device has none (simulated)."""
    backward_s: float | None
    launch_s: float | None
    """Host time to launch work on the simulated GPU; None where `forward_s` is known."""
    sync_s: float
    """Time that the host waits for the device (`sync_every` and the end of the epoch)."""
    steps: int
    images: int
    batch_bytes: int
    """Bytes of all batches that are handed to the device."""
    compute_s: float | None
    """Device time spent on steps: the simulated GPU's timeline; None elsewhere."""
    last_ids_crc: int | None = None
    """CRC-32 of the last batch's sample ids, in order, as int64."""
    last_means: dict[str, float | list[float]] | None = None
    """Entry of the last batch -> its mean; of planes of red, green and blue, one mean each."""
    callbacks_s: float | None = None
    """Host time for work beside the steps: checkpoints, reports, metrics."""
    waits_s: tuple[float, ...] | None = None
    """One wait per step, to the microsecond; `wait_s` is their sum."""
    arrivals_s: tuple[float, ...] | None = None
    """When each batch was on the device, from the start of the epoch, to the microsecond; of
    several ranks, rank 0's."""


@dataclass(frozen=True, kw_only=True)
class AnyTrial(ABC):
    """The fields of every row of a run: the variant, the block, and how the trial ended."""

    variant: str
    block: int
    position: int
    """Place in the block's order, from 0."""
    role: Literal["A1", "A2", ""] = ""
    """Which of the baseline's two runs in a block this is; empty for other variants."""
    status: Status
    reason: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    """What else tells its work from that of others: cache=cold|warm|50 % cached as verified,
    images, loss, precision, ranks, …; of operations input and threads."""
    disturbance: dict[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    @property
    @abstractmethod
    def time_s(self) -> float:
        """The time by which variants are compared; 0 where nothing was timed."""

    @property
    def timed_s(self) -> float:
        """Seconds for which the trial was timed."""
        return self.time_s

    @property
    def images_per_s(self) -> float:
        """Images per second of the timed work."""
        return 1 / self.time_s

    def to_row(self) -> dict[str, Any]:
        """Return the trial as a dict for JSON; `from_row` reads it."""
        return asdict(self)

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Self:
        """Rebuild a trial from its row.

        Raises:
            ValueError: the row was written by a newer labkit.
        """
        if row.get("schema", 0) > SCHEMA:
            raise ValueError(
                f"schema must be at most {SCHEMA}, got {row['schema']}; "
                "update labkit to read this run"
            )
        known = {f.name for f in fields(cls)}
        read = cls._read(row)
        return cls(**{name: value for name, value in read.items() if name in known})

    @staticmethod
    def _read(row: dict[str, Any]) -> dict[str, Any]:
        """Return a row of any version in today's format, with Python types."""
        return row


@dataclass(frozen=True, kw_only=True)
class OperationTrial(AnyTrial):
    """One operation, timed by one library or in one way in one block."""

    image_s: float | None = None
    """Seconds per image: the median over the block's repeats; None where nothing was timed."""
    calls: int = 0
    """Timed calls, all repeats together."""

    @property
    def time_s(self) -> float:
        """Seconds per image."""
        return self.image_s or 0.0

    @property
    def timed_s(self) -> float:
        """Seconds of all calls."""
        return self.calls * self.time_s

    @staticmethod
    def _read(row: dict[str, Any]) -> dict[str, Any]:
        """Read the epoch of one image, the mean over all calls, that versions before 7 wrote."""
        for epoch in row.get("epochs", ()):
            row = {**row, "image_s": epoch["epoch_s"], "calls": epoch["steps"]}
        return row


@dataclass(frozen=True, kw_only=True)
class Trial(AnyTrial):
    """One run of one variant's epochs in a fresh process."""

    experiment: str
    group: str = ""
    """The group in which times are compared, as "x = 2"; empty where a run has no groups."""
    settings: dict[str, Any]
    epochs: tuple[Epoch, ...] = ()
    cpu_s: float | None = None
    """CPU-seconds of the trial and its workers during the epochs."""
    cpu_percent: float | None = None
    """cpu_s over wall time; 200 means two busy cores."""
    gpu_util_mean: float | None = None
    gpu_memory_bytes: int | None = None
    """Largest memory in use on the whole GPU, by all programs (NVML)."""
    gpu_allocated_bytes: int | None = None
    """Largest memory of torch's tensors on the CUDA device during the epochs."""
    gpu_reserved_bytes: int | None = None
    """Largest memory that torch's allocator reserved on it, in use or kept for later."""
    simulated_busy_share: float | None = None
    """Share of the epochs in which the simulated GPU computed."""
    peak_rss_bytes: int | None = None
    """Largest resident memory of the training process."""
    peak_pss_bytes: int | None = None
    """Largest proportional memory of the training process and its workers together."""
    peak_shm_bytes: int | None = None
    """Largest memory in /dev/shm, without what was there before the epochs."""
    cache_proof: dict[str, Any] = field(default_factory=dict)
    medium: dict[str, Any] = field(default_factory=dict)
    """The medium of the files: filesystem, device, rotational, cold_reads_per_s (None: unknown)."""
    hardware: tuple[Hardware, ...] = ()
    """The device, the storage, and the network of several ranks."""
    first_loss: float | None = None
    """Loss of the untrained weights in the warm-up; variants differ in rounding only."""
    loss: float | None = None
    """Loss of the last step; None where nothing is trained."""
    unreadable_images: int | None = None
    """Number of images left out for all variants because one variant cannot read or decode them."""
    run: str = "unknown"
    """The run folder's name."""
    machine_id: str = "unknown"
    started_utc: str = "unknown"

    @property
    def time_s(self) -> float:
        """Sum of the epochs' seconds, start-up included, as in the documents."""
        return sum(epoch.epoch_s for epoch in self.epochs)

    @property
    def images(self) -> int:
        """Number of images of all epochs."""
        return sum(epoch.images for epoch in self.epochs)

    @property
    def images_per_s(self) -> float:
        """Images of all epochs ÷ seconds of all epochs, start-up included."""
        return self.images / self.time_s

    @staticmethod
    def _read(row: dict[str, Any]) -> dict[str, Any]:
        if "hardware" not in row:
            row = {**row, **_without_hardware(row.get("labels", {}))}
        hardware = (h if isinstance(h, Hardware) else Hardware(**h) for h in row["hardware"])
        epochs = tuple(_epoch_of(epoch) for epoch in row["epochs"])
        if "emulated_busy_share" in row:  # before schema 7
            row = {**row, "simulated_busy_share": row["emulated_busy_share"]}
        settings = with_new_names(row["settings"])
        return {**row, "settings": settings, "hardware": tuple(hardware), "epochs": epochs}


def _without_hardware(labels: Mapping[str, str]) -> dict[str, Any]:
    """Return what replaces the labels of earlier versions, which contain the hardware as text."""
    kinds: dict[str, Literal["device", "storage", "network"]] = {
        "accelerator": "device", "storage": "storage", "network": "network",
    }  # fmt: skip
    hardware = [read_hardware(kind, labels[name]) for name, kind in kinds.items() if name in labels]
    others = {name: label for name, label in labels.items() if name not in kinds}
    return {"hardware": hardware, "labels": others}


def read_hardware(kind: Literal["device", "storage", "network"], label: str) -> Hardware:
    """Return hardware that an earlier version wrote as text, as "throttled(81 reads/s)"."""
    how: dict[str, Literal["unconfirmed", "simulated", "throttled", "modelled"]] = {
        "unknown": "unconfirmed",
        "emulated": "simulated",
        "emulated distance": "simulated",
        "throttled": "throttled",
        "modelled": "modelled",
    }
    word, _, details = label.partition("(")
    if word.strip() in how:
        return Hardware(kind, how[word.strip()], details.removesuffix(")"))
    return Hardware(kind, details="" if label == "real" else label)


def _epoch_of(row: dict[str, Any]) -> Epoch:
    """Rebuild an epoch; JSON has lists for its tuples."""
    per_step = {name: row.get(name) for name in ("waits_s", "arrivals_s")}
    tuples = {name: tuple(value) for name, value in per_step.items() if value is not None}
    return Epoch(**{**row, **tuples})


# Format history of run.json
#   1  first version
#   2  `local`: what may not leave this machine; request
#   3  the host of a simulated GPU spins and needs a core to launch and to copy; it slept before
RUN_SCHEMA = 3
EPOCHS, ROOFLINE, OPERATION = "epochs", "roofline", "operation"  # what a run's trials time
KINDS = (EPOCHS, OPERATION, ROOFLINE)
UNKNOWN = "unknown"
Plain = str | int | float | bool | None


def effective_settings(kind: str) -> frozenset[str]:
    """Return the names of the settings that have an effect on what a kind of run times."""
    return frozenset({"data", "seed"} if kind == OPERATION else field_kinds())


@dataclass(frozen=True, kw_only=True)
class CudaState:
    """Whether this torch build runs kernels on this machine's first GPU."""

    works: bool
    reason: str = ""
    """The reason why it does not work, as a sentence; empty where it works."""
    name: str = ""
    memory_bytes: int | None = None
    driver: str = ""
    """Version of the NVIDIA driver."""
    capability: str = ""
    """Compute capability, as "8.9"."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The machine and the software that a run is measured with; None is unknown."""

    machine_id: str = UNKNOWN
    """A hash that is the same for all runs on this machine."""
    platform: str = UNKNOWN
    kernel: str = UNKNOWN
    python: str = UNKNOWN
    virtual: bool | None = None
    """Whether a hypervisor can steal time."""
    cpu_model: str = UNKNOWN
    cpu_count: int | None = None
    """Logical cores of the machine."""
    cores: int | None = None
    """Number of cores that the run may use."""
    memory_bytes: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    """Library -> its version; "unknown" where a required one is missing."""
    revision: str = UNKNOWN
    """Commit of labkit."""
    dirty: bool | None = None
    """Whether labkit's files differ from that commit."""
    gpu: CudaState | None = None


@dataclass(frozen=True, kw_only=True)
class Data:
    """The data set of a run; 0 is unknown."""

    folder: str = ""
    """The value of the setting `data`."""
    images: int = 0
    bytes: int = 0
    """Bytes of all images."""
    boxes: str = ""
    """Origin of the boxes: "coco" (stored) or "synthesized" (invented)."""
    kind: str = ""
    """The data in words, as "the user's own images"."""
    data_hash: str = UNKNOWN
    """As of `labkit.contracts.Reader`, where the data has a manifest."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Rates measured before the trials; None: unknown, or not measured."""

    images: int | None = None
    """Images of an epoch, the same for all variants."""
    images_per_s: float | None = None
    """The baseline's training rate, all its ranks together."""
    load_images_per_s: float | None = None
    """The baseline's loading rate alone."""
    device_images_per_s: float | None = None
    """Training rate of the baseline's device with the model alone."""
    real_gpu_images_per_s: float | None = None
    """Training rate of this machine's GPU with the model alone, where the run simulates one."""
    calibrated_images_per_s: float | None = None
    """The calibrated device's rate, where a variant uses it."""
    calibrated: str = ""
    """The calibrated device in a sentence."""
    free_loader_au: float | None = None
    """Share of the time in which the simulated GPU computes with a loader that costs nothing."""
    free_loader_checked_utc: str = ""

    def __post_init__(self) -> None:
        for name in ("load_images_per_s", "device_images_per_s", "real_gpu_images_per_s"):
            check_positive(name, getattr(self, name))


def check_positive(name: str, value: object) -> None:
    """Raise an error for a rate or a ratio that is known but not above 0.

    Raises:
        ValueError: it is something else, as in a run from a colleague.
    """
    if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
        raise ValueError(f"{name} must be a number above 0, got {value!r:.80}; measure it again")


@dataclass(frozen=True, kw_only=True)
class ProvedRates:
    """Measured rates of a simulated disk or network."""

    rates: tuple[Mapping[str, Any], ...] = ()
    """One per pattern, see `labkit.analysis.simulated.describe_rate`; empty: not measured."""
    rates_checked_utc: str = ""


@dataclass(frozen=True, kw_only=True)
class StagedStorage(ProvedRates):
    """A storage of a run on its machine; None is unknown."""

    hardware: Hardware = Hardware("storage")
    """The medium, as in rows."""
    filesystem: str = ""
    device: str = ""
    rotational: bool | None = None
    cold_reads_per_s: float | None = None
    remark: str = ""
    """The reason for doubting that the medium is what it is called."""
    copied_bytes: int | None = None
    """Bytes that were copied there; None: the data is not copied."""
    copied_s: float | None = None

    @property
    def medium(self) -> dict[str, Any]:
        """The facts that every row repeats."""
        names = ("filesystem", "device", "rotational", "cold_reads_per_s")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One-time costs of storing a variant's images."""

    bytes: int
    pack_s: float | None = 0.0
    """Seconds to make the pack; None: unknown, as it was made elsewhere."""
    copy_s: float = 0.0
    source_bytes: int | None = None
    """Bytes of the images before packing."""


@dataclass(frozen=True, kw_only=True)
class ReadCounts:
    """Operations to read one image as a variant stores it; None is unknown."""

    opens: float | None = None
    """Files that Python code opens, per image."""
    calls: float | None = None
    """Read calls per image."""
    requests: float | None = None
    """Requests that the disk completes, per image."""
    bytes_per_s: float | None = None
    """Rate of reading cold images one after another, in the order in which they are stored."""


@dataclass(frozen=True, kw_only=True)
class StepsAxis:
    """How often the training loop does something, as one setting."""

    setting: str
    """Name of a setting that counts steps; 0 is never."""
    advice: int | None = None
    """Steps that a document recommends."""
    source: str = ""
    """Document and section of the advice."""


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """A run without its rows: the request, the experiment, the checks before the trials, the end.

    `labkit.runs.store` writes and reads it, and knows what of it is local.
    """

    schema: int = RUN_SCHEMA
    """Schema of the version that started the run."""
    experiment: str
    question: str
    kind: str = EPOCHS
    """What the trials time, one of `KINDS`."""
    mode: str
    protocol: str = CORRECTED
    request: Mapping[str, Any] | None = None
    """The user's request, as `labkit.experiments.request.Request` writes it; None: not recorded."""
    variants: Mapping[str, Settings]
    """Label -> settings, complete for the run's machine."""
    unknown_settings: Mapping[str, Mapping[str, Plain]] = field(default_factory=dict)
    """Label -> settings, or values of them, that only another version of labkit knows."""
    facts: Mapping[str, Facts] = field(default_factory=dict)
    """Label -> facts about the variant's parts that matter when it is compared."""
    baseline: str
    groups: Mapping[str, str] = field(default_factory=dict)
    """Label -> group in which it is compared; empty: the run has no groups."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Label -> the name in its group, as "both" of "x = 2: both"; empty without groups."""
    baselines: Mapping[str, str] = field(default_factory=dict)
    """Group -> its baseline; empty without groups."""
    tasks: Mapping[str, Mapping[str, Plain]] = field(default_factory=dict)
    """Label -> what trials need in addition to the settings, for kinds that need more."""
    blocks: int
    shuffled: bool = True
    """Whether a block has its variants in random order and the baseline twice (A1, A2)."""
    order_seed: int
    published: Mapping[str, float] = field(default_factory=dict)
    """Label -> the document's normalized time."""
    source: str = ""
    """Document and section."""
    x_axis: StepsAxis | None = None
    compared_images: int | None = None
    """How many images of the last batches are compared; None: whole batches."""
    created_utc: str
    data: Data
    provenance: Provenance
    storages: Mapping[str, StagedStorage] = field(default_factory=dict)
    links: Mapping[str, ProvedRates] = field(default_factory=dict)
    """Simulated network between ranks -> its measured rates."""
    costs: Mapping[str, Cost] = field(default_factory=dict)
    """Label -> cost of storing the images; without variants that read them as they are."""
    reads: Mapping[str, ReadCounts] = field(default_factory=dict)
    """Label -> operations per image, where variants store the images in different ways."""
    psnr_db: Mapping[str, float] = field(default_factory=dict)
    """Label -> peak signal-to-noise ratio of a batch to the baseline's in dB, of variants whose
    pixels differ by design."""
    calibration: Calibration | None = None
    """None: the run was not calibrated yet."""
    excluded: tuple[int, ...] = ()
    """Indices of unreadable images, left out for all variants."""
    unreadable: tuple[str, ...] = ()
    """One line per unreadable image."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Label -> reason why the variant cannot run here."""
    failed: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    local_notes: tuple[str, ...] = ()
    """Notes of earlier versions, which name files."""
    status: str
    """running, finished, cancelled or failed; a run whose process was killed stays "running"."""
    reason: str = ""
    """The reason why the run failed."""
    run: str | None = None
    """Name of the original run folder, for a run that was shared."""
    shared_from: str = ""
    """The machine of the colleague who shared the run, in one line; empty: it was run here."""

    @property
    def trial_type(self) -> type[AnyTrial]:
        """The type of the run's rows."""
        return OperationTrial if self.kind == OPERATION else Trial

    def facts_of(self, label: str) -> Facts:
        """Return the facts about a variant's parts that matter when it is compared."""
        return self.facts.get(label, Facts())

    @property
    def baseline_by_group(self) -> Mapping[str, str]:
        """Group -> its baseline; a run without groups has one, ""."""
        return self.baselines or {"": self.baseline}

    @property
    def base_settings(self) -> Settings:
        """The baseline's settings."""
        return self.variants[self.baseline]

    def group_of(self, variant: str) -> str:
        """Return the group in which a variant is compared; empty where a run has no groups."""
        return self.groups.get(variant, "")

    def name_of(self, variant: str) -> str:
        """Return a variant's name in its group; without groups it is the label."""
        return self.names.get(variant, variant)

    def x_of(self, variant: str) -> float | None:
        """Return a variant's speed of the device as a multiple of the loading rate, if it has one.

        Raises:
            ValueError: it is no number above 0.
        """
        x: Any = self.tasks.get(variant, {}).get("x")
        check_positive("x", x)
        return x

    def gpu_slowdown_of(self, variant: str) -> int:
        """Return how many times a variant trains on each batch; 2: as a device of half the speed.

        Raises:
            ValueError: it is no number above 0.
        """
        times: Any = self.tasks.get(variant, {}).get("gpu_slowdown", 1)
        check_positive("gpu_slowdown", times)
        return times

    def settings_of(self, variant: str) -> dict[str, Plain]:
        """Return the settings of a variant that have an effect, by name, unknown ones too."""
        names = effective_settings(self.kind)
        settings = {name: x for name, x in vars(self.variants[variant]).items() if name in names}
        return {**settings, **self.unknown_settings.get(variant, {})}

    def check_settings(self, variant: str) -> Settings:
        """Return a variant's settings, to run them or to write them as a program.

        Raises:
            ValueError: this version does not know one of them.
        """
        if unknown := self.unknown_settings.get(variant):
            raise ValueError(
                "settings must be known to this version of labkit, got "
                f"{', '.join(f'{name}={value!r}' for name, value in sorted(unknown.items()))}; "
                "the run was made with another version: start a new run"
            )
        return self.variants[variant]
