"""The documents' claims as data: one for each of the 38 items of their checklist.

Each says what a document claims, the figure it gives, and which experiment tests it.  An
experiment may be named here before it exists: `claims` looks it up when it answers.  Main
trap: a figure without a source would look measured, so `published` and `expected` hold only
what a document says or its chart shows; what was lost or never given stays empty.

Source: DOCUMENTS A (items, figures), 0.1 (the charts' bar labels); docs/documents.md.
"""

from __future__ import annotations

from dataclasses import dataclass

ONE_GPU = "it takes several GPUs, and the lab drives one"
# Experiments whose variants only this machine's GPU can name -> what makes them.
MADE_BY = {"batch_size_fill": "lab.largest_batch(…).experiment(), on CUDA,"}
SEVERAL_MACHINES = "it takes several machines with GPUs, and the lab runs on one"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One thing that the documents say, and where the lab tests it."""

    number: int
    """Item of the checklist, 1 to 38."""
    documents: tuple[str, ...]
    """Who says so, as ("[000]", "[004]")."""
    claim: str
    published: str = ""
    """The figure in the document's own terms; empty where it gives none."""
    experiment: str = ""
    """Name of the experiment that tests it, whether it exists already or not."""
    variant: str = ""
    """Label in that experiment; empty where its answer is no normalized time."""
    expected: float | None = None
    """Normalized time that the document reported for the variant, where it did."""
    direction: str = ""
    """What the claim comes to where no figure is given: faster, slower or nothing."""
    also: tuple[tuple[str, str, float | str | None], ...] = ()
    """Further (experiment, variant, expected) that bear on it; a word is another direction."""
    reason: str = ""
    """Why it cannot be tested here as long as there is no experiment."""

    @property
    def tests(self) -> tuple[tuple[str, str, float | str | None], ...]:
        """Every (experiment, variant, expected) that bears on the claim."""
        return ((self.experiment, self.variant, self.expected), *self.also)


CLAIMS: tuple[Claim, ...] = (
    # --- diagnosis ------------------------------------------------------------------------
    Claim(
        number=1,
        documents=("[000]",),
        claim="A profiler's call graph of one epoch shows whether reading data is the bottleneck.",
        experiment="bottlenecks",
        variant="loading",
        also=(("bottlenecks", "computing", None), ("bottlenecks", "loss in loops", None)),
    ),
    Claim(
        number=2,
        documents=("[002]",),
        claim="Timing data loading, forward and backward pass apart shows what slows training.",
        experiment="bottlenecks",
        variant="computing",
        also=(("bottlenecks", "computing, not synchronized", None),),
    ),
    Claim(
        number=3,
        documents=("[000]", "[001]", "[003]", "[004]"),
        claim="GPU-util is the share of a sampling period in which a kernel ran; waiting for data "
        "takes it to 0 %.",
        published="99 % to 10 % and back [000]; often 0 % [003]; "
        "from 100 to 0 % for 1-2 s after every 5 s [004]",
        experiment="bottlenecks",
        variant="loading",
    ),
    Claim(
        number=4,
        documents=("[001]",),
        claim="Eight CPU jobs stall a GPU: load, preprocess, save, loss, evaluation, logs, "
        "metric and progress reports.",
        experiment="stalls",
        variant="checkpoint every 10 steps",
        direction="slower",
        also=(
            ("stalls", "metrics in loops", None),
            ("stalls", "loss printed every step", None),
            ("stalls", "loss sent every step", None),
            ("stalls", "progress bar", None),
        ),
    ),
    Claim(
        number=5,
        documents=("[002]",),
        claim="Raise num_workers while loading gets faster; where it no longer does, take the "
        "lowest CPU use.",
        published="8, if 8 to 12 load about equally fast",
        experiment="workers",
    ),
    # --- storage --------------------------------------------------------------------------
    Claim(
        number=6,
        documents=("[001]",),
        claim="Storage in another city than the GPUs loads too slowly to keep them busy.",
        published="large",
        experiment="distance",
        variant="copied first",
        direction="faster",
    ),
    Claim(
        number=7,
        documents=("[001]",),
        claim="Local SSD reads faster than ceph, then cfs-1.5, hdfs and mdfs: copy the data to "
        "it first.",
        experiment="distance",
        variant="copied first",
        direction="faster",
    ),
    Claim(
        number=8,
        documents=("[000]", "[003]", "[004]"),
        claim="Data on an SSD, or better on NVMe, instead of a hard disk shortens training.",
        published="SSD: 86.0 % of the hard disk's time [004]",
        experiment="storage",
        variant="ssd",
        expected=0.860,
        direction="faster",
        also=(("storage", "nvme", None),),
    ),
    Claim(
        number=9,
        documents=("[000]", "[003]", "[004]"),
        claim="Data in memory (tmpfs) loads with hardly any delay; it may be swapped, and goes "
        "with the power.",
        published="86.4 % of the hard disk's time [004]",
        experiment="storage",
        variant="tmpfs",
        expected=0.864,
    ),
    Claim(
        number=10,
        documents=("[000]", "[001]", "[004]"),
        claim="Packing many small images into one file (HDF5, pth, LMDB, TFRecord) saves reading "
        "time.",
        experiment="packing",
        variant="lmdb",
        direction="faster",
        also=(("packing", "hdf5", None), ("packing", "pth", None), ("packing", "tfrecord", None)),
    ),
    Claim(
        number=11,
        documents=("[000]",),
        claim="Many small files lose time to seeking on the disk and to opening and closing each.",
        experiment="small_files",
        variant="files of 4 KiB",
        direction="slower",
    ),
    # --- loader ---------------------------------------------------------------------------
    Claim(
        number=12,
        documents=("[001]", "[002]", "[004]"),
        claim="num_workers feeds the GPU by loading in parallel; too many block each other or "
        "exhaust memory.",
        published="the CPU's threads at most, often 8 or 12 [002]; "
        "as many as CPU cores or as GPUs [004]",
        experiment="workers",
        variant="no workers",
        direction="slower",
        also=(("workers", "twice as many", None),),
    ),
    Claim(
        number=13,
        documents=("[001]",),
        claim="num_parallel_reads makes TFRecordDataset read in parallel, so that the GPU waits "
        "less.",
        experiment="num_parallel_reads",
        variant="in parallel",
        direction="faster",
    ),
    Claim(
        number=14,
        documents=("[000]", "[001]"),
        claim="prefetch_factor (PyTorch 1.7 on) has each worker load ahead, so that CPU and GPU "
        "work at once.",
        experiment="prefetch_factor",
        variant="1 batch each",
        direction="slower",
    ),
    Claim(
        number=15,
        documents=("[001]", "[002]", "[004]"),
        claim="Where memory is plentiful, pin_memory=True saves a little of the transfer to the "
        "GPU.",
        published="a little",
        experiment="pin_memory",
        variant="pinned",
        direction="faster",
    ),
    Claim(
        number=16,
        documents=("[002]",),
        claim="batch_size should be a multiple of 2, better of 4, and fill most of the GPU's "
        "memory.",
        published="90 % of the memory or more; 4, 8, 12, 16, 32, 128, 256",
        experiment="batch_size",
        variant="21 (odd)",
        direction="slower",
        also=(
            ("batch_size_powers", "64", "faster"),
            ("batch_size_fill", "90 % of the largest", "faster"),
        ),
    ),
    Claim(
        number=17,
        documents=("[001]",),
        claim="DataLoader has persistent_workers, False by default (listed, with no effect "
        "claimed).",
        experiment="persistent_workers",
        variant="kept",
        also=(("short_epochs", "kept", None),),
    ),
    Claim(
        number=18,
        documents=("[001]",),
        claim="DataLoader takes map and iterable datasets, a loading order of one's own and a "
        "collate function.",
        experiment="sampling",
        variant="in order",
        also=(
            ("sampling", "iterable data set", None),
            ("sampling", "joined in the loop", None),
        ),
    ),
    Claim(
        number=19,
        documents=("[004]",),
        claim="prefetch_generator loads the next batch in the background: about 10 % less time.",
        published="89.4 % of the original's time",
        experiment="prefetching",
        variant="prefetch_generator",
        expected=0.894,
    ),
    Claim(
        number=20,
        documents=("[000]", "[003]", "[004]"),
        claim="apex's data_prefetcher copies ahead on a stream of its own; with "
        "prefetch_generator no gain is added.",
        published="89.1 % of the original's time; both together 89.7 % [004]",
        experiment="prefetching",
        variant="data_prefetcher",
        expected=0.891,
        also=(("prefetching", "both", 0.897),),
    ),
    Claim(
        number=21,
        documents=("[003]", "[004]"),
        claim="A copy to the GPU runs beside computation only from pinned memory and on another "
        "stream.",
        experiment="pin_memory",
        variant="pinned, side stream",
        direction="faster",
    ),
    Claim(
        number=22,
        documents=("[001]",),
        claim="tf.data with parallel map and prefetch prepares data while the GPU trains.",
        experiment="tf_data",
        variant="parallel map and prefetch",
        direction="faster",
        also=(("rivals", "tf.data", None),),
    ),
    # --- preprocessing --------------------------------------------------------------------
    Claim(
        number=23,
        documents=("[000]",),
        claim="OpenCV reads, resizes and converts images faster than PIL in most cases.",
        published="OpenCV in most cases",
        experiment="operations",
        direction="faster",
        also=(("opencv_vs_pil", "opencv", None),),
    ),
    Claim(
        number=24,
        documents=("[001]", "[004]"),
        claim="Simpler, vectorized preprocessing with fewer loops shortens training.",
        published="66.1 % of the original's time, together with 25 [004]",
        experiment="preprocessing",
        variant="vectorized",
        direction="faster",
    ),
    Claim(
        number=25,
        documents=("[004]",),
        claim="Making data smaller and transferring nothing useless shortens training.",
        published="66.1 % of the original's time, together with 24",
        experiment="preprocessing",
        variant="simplified",
        expected=0.661,
    ),
    Claim(
        number=26,
        documents=("[001]",),
        claim="Part of the preprocessing, as normalization, belongs in a Spark or CPU job before "
        "training.",
        experiment="offline",
        variant="float32 samples",
        direction="faster",
        also=(("offline", "uint8 pixels", None), ("offline", "JPEGs resized", None)),
    ),
    Claim(
        number=27,
        documents=("[001]",),
        claim="Configuration that preprocessing needs should be loaded once, not read at every "
        "use.",
        experiment="lookups",
        direction="faster",
    ),
    Claim(
        number=28,
        documents=("[001]",),
        claim="Queries in preprocessing get faster with a dict.",
        experiment="lookups",
        direction="faster",
    ),
    Claim(
        number=29,
        documents=("[000]", "[001]", "[003]", "[004]"),
        claim="DALI, which can preprocess on the GPU, makes training much faster.",
        published="nearly 4 times as fast [000]",
        experiment="rivals",
        variant="DALI",
        direction="faster",
    ),
    # --- training loop, distributed -------------------------------------------------------
    Claim(
        number=30,
        documents=("[001]",),
        claim="Saving the model too often makes the GPU wait: save fewer checkpoints.",
        experiment="checkpoints",
        variant="every 10 steps",
        direction="slower",
        also=(("checkpoints", "every 100 steps", None),),
    ),
    Claim(
        number=31,
        documents=("[001]",),
        claim="A loss with for loops blocks the GPU: use a simpler one, or several processes or "
        "threads.",
        experiment="loss",
        variant="all at once",
        direction="faster",
        also=(("loss", "loops in threads", None),),
    ),
    Claim(
        number=32,
        documents=("[001]",),
        claim="Reporting metrics too often lowers GPU utilization: report only at some steps.",
        published="every 100 steps",
        experiment="metric_reports",
        variant="every step",
        direction="slower",
        also=(("metric_reports", "every 100 steps", None),),
    ),
    Claim(
        number=33,
        documents=("[001]",),
        claim="Printing logs too often lowers GPU utilization: print only at some steps.",
        published="every 100 steps",
        experiment="logs",
        variant="every step",
        direction="slower",
        also=(("logs", "every 100 steps", None),),
    ),
    Claim(
        number=34,
        documents=("[001]",),
        claim="Evaluation metrics and progress reports are CPU work that can hold up the GPU.",
        experiment="evaluation",
        variant="loops, every step",
        direction="slower",
        also=(("progress", "tqdm with the loss", None),),
    ),
    Claim(
        number=35,
        documents=("[001]",),
        claim="DistributedDataParallel is recommended over DataParallel on several GPUs.",
        experiment="distributed",
        reason=ONE_GPU,
    ),
    Claim(
        number=36,
        documents=("[004]",),
        claim="apex speeds up training, its DistributedDataParallel in place of torch's "
        "DataParallel too.",
        experiment="distributed",
        reason=ONE_GPU,
    ),
    Claim(
        number=37,
        documents=("[001]",),
        claim="GPUDirect RDMA speeds up training on several machines; NCCL's log shows whether "
        "it is on.",
        published="4 % faster: NCCL 2.4.8 with GDRDMA than 2.7.8 without",
        experiment="distributed",
        reason=SEVERAL_MACHINES,
    ),
    Claim(
        number=38,
        documents=("[001]",),
        claim="Machines in different modules of a cluster take much longer to communicate.",
        experiment="distributed",
        reason=SEVERAL_MACHINES,
    ),
)
