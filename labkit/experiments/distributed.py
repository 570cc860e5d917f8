"""More GPUs, one loader?  See notebook 10_distributed."""

from __future__ import annotations

from dataclasses import replace

from labkit import units
from labkit.experiments.sweep import in_groups, sweep, with_published
from labkit.machine import hardware
from labkit.runs.experiment import Variants, as_experiment
from labkit.settings import Settings


@as_experiment(
    "Does adding GPUs help if they share the CPU?",
    source="[001] 5.3: one process per GPU; no number given",
)
def ranks(base: Settings) -> Variants:
    """Compare 1, 2 and 4 processes that train together, each with a GPU, with equally many workers.

    Where the loader is the limit, more GPUs bring nothing: they share this machine's cores.  Of
    simulated GPUs without a speed, one group trains a third as fast as the loader, so that two do
    not reach its speed and four do, and one twice as fast.

    Source: [001] 5.3; DISTRIBUTED, "Loading with several ranks".
    """
    workers = max(4, hardware.cores() // 4 * 4)  # as many for each of four ranks
    base = replace(
        base,
        device=base.device or "simulated",
        num_workers=workers if base.num_workers is None else base.num_workers,
        epochs=1,
    )
    variants = sweep(base, "ranks", [1, 2, 4], label=lambda n: units.count(n, "GPU"))
    if base.is_on_simulated_gpu and base.gpu_images_per_s is None:
        speeds = {
            "GPUs a third as fast as the loader": 1 / 3,
            "GPUs twice as fast as the loader": 2.0,
        }
        variants = in_groups(
            dict.fromkeys(speeds, variants),
            # Where two bring nothing, quick mode need not show that four bring no more.
            lambda group, label: speeds[group] < 1 or label != "4 GPUs",
            {group: {"x": x} for group, x in speeds.items()},
        )
    return variants


@as_experiment(
    "How much of a step do machines need to exchange gradients?",
    source="[001] 5.1: machines in different modules take much longer; no number given",
)
def communication(base: Settings) -> Variants:
    """Compare the exchange of gradients over links of several speeds with no exchange at all.

    A small model trains in processes that stand for machines; only its gradients are exchanged.

    Source: [001] 5.1; DISTRIBUTED, "Limited links".
    """
    device = base.device or "cpu"
    base = replace(
        base,
        device=device,
        step=base.step or ("small_classifier" if device != "simulated" else None),
        preprocessor="classification",
        loader="resident",
        cache="as found",
        num_workers=0,
        batch_size=base.batch_size or 8,
        input_px=base.input_px or 128,
        epochs=1,
    )
    exchanges = {"no exchange": "noop", "this machine's loopback": "all_reduce"}
    exchanges |= {f"{n:,} Mbit/s": f"{n}mbit" for n in (1_000, 400, 100, 50)}
    exchanges["no exchange, no_sync"] = "no_sync"
    only_in_full = ("1,000 Mbit/s", "no exchange, no_sync")
    groups = {
        f"{ranks} machines": sweep(replace(base, ranks=ranks), "exchange", exchanges)
        # Two ranks' all-gather was 58 % slower than more ranks' (gloo#471), so full mode adds four.
        for ranks in (2, 4)
    }
    fewest = next(iter(groups))
    return in_groups(groups, lambda group, label: group == fewest and label not in only_in_full)


@as_experiment(
    "Do several GPUs train faster by DistributedDataParallel than by DataParallel?",
    source="[001] 5.3: DistributedDataParallel; the published figures are those of "
    "The-AI-Summer/pytorch-ddp",
)
def data_parallel(base: Settings) -> Variants:
    """Compare DataParallel with DistributedDataParallel; each GPU has a batch of the same size.

    One batch stays in memory.  Without several GPUs there is nothing to compare.

    Source: [001] 5.3; DISTRIBUTED, "Today's state".
    """
    base = replace(
        base,
        device=base.device or "cuda",
        preprocessor="classification",
        loader="resident",
        cache="as found",
        num_workers=0,
        batch_size=32,  # of a GPU: enough work for a step to hide a part of the exchange
        epochs=1,
    )
    variants = {"1 GPU": base}
    for gpus in (2, 4):
        variants[f"DataParallel, {gpus} GPUs"] = replace(
            base, exchange=f"data_parallel_{gpus}", batch_size=gpus * base.batch_size
        )
        variants[f"DistributedDataParallel, {gpus} GPUs"] = replace(base, ranks=gpus)
    # Seconds of an epoch that The-AI-Summer/pytorch-ddp reports for GPUs of one machine.
    one_gpu_s = 13.08
    several_gpus_s = {
        "DataParallel, 2 GPUs": 42.97,
        "DistributedDataParallel, 2 GPUs": 9.79,
        "DataParallel, 4 GPUs": 31.32,
        "DistributedDataParallel, 4 GPUs": 6.11,
    }
    times = {label: epoch_s / one_gpu_s for label, epoch_s in several_gpus_s.items()}
    return with_published(times, variants)
