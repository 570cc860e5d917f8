"""One packed file, or many small ones?  See notebook 07_packing.

The documents name these remedies without a figure, so nothing is published here.
"""

from __future__ import annotations

from dataclasses import replace

from labkit.experiments.sweep import change_all, full_only, in_groups
from labkit.runs.experiment import Experiment, Variants, as_experiment
from labkit.settings import Settings


@as_experiment(
    "Does one packed file read faster than many small ones?",
    source="[000], [001] 3.1.3, [004] 2.6: HDF5, pth, LMDB, TFRecord; no number given",
)
def packing(base: Settings) -> Variants:
    """Compare a file for each image with one packed file, in the formats the documents name.

    Both are read from a hard disk, whose seeking is what packing is to save, unless the user names
    another storage.

    Source: [000], [001] 3.1.3, [004] 2.6.
    """
    # What is read in order must lie in order: no holes between an epoch's images.
    base = replace(base, packing="folder", preprocessor="classification", subset="first")
    # Quick mode has time for the formats that the documents name.
    documented = ("hdf5", "pth", "lmdb", "tfrecord")
    quick = {"folder": base} | {name: replace(base, packing=name) for name in documented}
    raw = {"raw": replace(base, packing="raw")}
    every = {**quick, **raw}
    files_and_lmdb = {"folder": base, "lmdb": quick["lmdb"]}
    sequential = change_all(every, "{}, sequential", shuffle=False)
    warm = change_all(every, "{}, warm", cache="warm")
    alone = change_all(files_and_lmdb | raw, "{}, no workers", num_workers=0)
    in_memory = change_all(files_and_lmdb, "{} on tmpfs", storage="tmpfs", cache="warm")
    return quick | full_only({**raw, **sequential, **warm, **alone, **in_memory})


@as_experiment(
    "How slow are thumbnails stored as separate files?",
    source="[000]: seeking, opening and closing",
)
def small_files(base: Settings) -> Variants:
    """Compare thumbnails in a file each with one file that holds all of them.

    Source: [000].
    """
    base = replace(base, preprocessor="classification", subset="first", step="nothing")
    base = replace(base, packing="raw", storage_format="resized")
    # Thumbnails have a few KB each, so seeking, opening and closing take most of the time.
    base = replace(base, input_px=base.input_px or 64)
    variants = {"one packed file": base, "a file each": replace(base, packing="folder")}
    return variants | full_only(change_all(variants, "{}, warm", cache="warm"))


@as_experiment(
    "Does preprocessing ahead of training shorten the epoch?",
    source="[001] 2.1b: a Spark or CPU job before training; no number given",
)
def offline(base: Settings) -> Variants:
    """Compare preprocessing while training with preprocessing ahead of it, stored in three forms.

    Source: [001] 2.1b.
    """
    # The usual input of a classifier.  Most photographs are larger, so storing them so saves time.
    input_px = base.input_px or 224
    base = replace(base, preprocessor="classification", input_px=input_px, subset="first")
    base = replace(base, packing="folder", storage_format="jpeg")
    variants = {
        "online": base,
        "JPEGs resized": replace(base, storage_format="resized"),
        "uint8 pixels": replace(base, packing="raw", storage_format="pixels"),
        "float32 samples": replace(base, packing="raw", storage_format="sample"),
    }
    return variants | full_only(change_all(variants, "{}, warm", cache="warm"))


@as_experiment(
    "How slow is remote storage, and does copying the data first help?",
    source="[001] 3.1.1 and 3.1.2: ceph in another city; local SSD > ceph > cfs > hdfs",
)
def distance(base: Settings) -> Variants:
    """Compare reading from a distant server with copying the data first.

    Source: [001] 3.1.1 and 3.1.2: data in one city, GPUs in another.
    """
    base = replace(base, preprocessor="classification")
    # A round trip over 1,000 km of fibre and routers takes about 20 ms: Shenzhen to Chongqing.
    server = "far_20ms_1000mbit"
    # What this machine does not hold it can neither evict nor read beforehand.
    far = replace(base, storage=server, cache="as found")
    in_full = {
        f"{rtt_ms} ms, {mbit:,} Mbit/s, {workers} workers": replace(
            far, storage=f"far_{rtt_ms}ms_{mbit}mbit", num_workers=workers
        )
        for rtt_ms in (1, 5, 50)
        for mbit in (100, 1000)
        for workers in (2, 8)
    }
    return {
        "read at a distance": far,
        "with 8 workers": replace(far, num_workers=8),
        "copied first": replace(base, storage=f"{server}_staged"),
        **full_only(in_full),
    }


def shards(base: Settings) -> Experiment:
    """Compare tar shards that are read one after the other with images that are read at random.

    Source: WebDataset, MDS and LitData, which read so.
    """
    # Every epoch begins with the same share in memory: a second one would only repeat the first.
    base = replace(base, preprocessor="classification", subset="first", packing="tar", epochs=1)
    arms = {
        "files at random": replace(base, packing="folder"),
        "tar at random": base,
        "shards with a buffer": replace(base, loader="shards"),
        "shards as stored": replace(base, loader="shards", shuffle=False),
    }
    groups = {f"{n} % in memory": change_all(arms, cache=n) for n in (0, 50, 100)}
    return Experiment(
        "shards",
        question="What do seeking and a random order cost, and what do shards with a buffer save?",
        variants=in_groups(groups),
        source="WebDataset, MDS, LitData: shards in order, samples mixed in a buffer",
        notes=(
            "how well a buffer mixes is how far apart in the data the images of a batch lie, as a "
            "share of what they are in a full shuffle",
        ),
    )
