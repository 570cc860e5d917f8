"""What `lab.watch` costs a loop: the same training with and without it, turn about.

The training is real: a DataLoader with a worker, a small ResNet-like network, SGD; the watch draws
on a terminal that nobody sees.  Its ratio shows the machine's noise, too, so the same hooks are
also timed in a loop that does next to nothing, to a fraction of a microsecond a step.  Exits with
1 where the limit is missed.

    python -m benchmarks.watch [--rounds N]
"""

import argparse
import gc
import io
import math
import statistics
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from labkit import units
from labkit.analysis.statistics import ALPHA, paired_interval
from labkit.contracts import SystemClock
from labkit.diagnosis.watch import Terminal, Watch

ROUNDS = 40
STEPS = 60
BATCH = 16
SIDE_PX = 32
FREE_STEPS = 2000
OVERHEAD_LIMIT = 0.01


class Block(nn.Module):
    """Two convolutions around a short cut: modules within modules, as everywhere."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.layers(x))


class Training:
    """A model, its optimizer and its data."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        images = torch.rand(STEPS * BATCH, 3, SIDE_PX, SIDE_PX)
        data = TensorDataset(images, torch.randint(10, (len(images),)))
        self.loader = DataLoader(data, BATCH, shuffle=True, num_workers=1, persistent_workers=True)
        self.model = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), *(Block(16) for _ in range(4)),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
        )  # fmt: skip
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def run_epoch(self, loader) -> None:
        """The loop anyone would write."""
        for images, labels in loader:
            loss = nn.functional.cross_entropy(self.model(images), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


class Nothing:
    """The same calls of torch, with next to no work in them."""

    def __init__(self) -> None:
        self.loader = [torch.ones(1, 1)] * FREE_STEPS
        self.model = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)

    def run_epoch(self, loader) -> None:
        for batch in loader:
            self.model(batch)
            self.optimizer.step()


class UnseenTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def compare(training, rounds: int, now=time.perf_counter) -> tuple[list[float], list[float]]:
    """Run both loops turn about; return their seconds, bare and watched, round by round."""
    seconds = {"bare": [], "watched": []}
    watched = Watch(training.loader, Terminal(UnseenTerminal()), SystemClock())
    training.run_epoch(training.loader)
    for number in range(rounds):
        for kind in sorted(seconds, reverse=bool(number % 2)):
            gc.collect()
            start_s = now()
            training.run_epoch(watched if kind == "watched" else training.loader)
            seconds[kind].append(now() - start_s)
    return seconds["bare"], seconds["watched"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each loop, at least 2")
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    bare_s, watched_s = compare(Training(), rounds)
    log_ratios = [math.log(watched / bare) for watched, bare in zip(watched_s, bare_s)]
    low, high = map(math.exp, paired_interval(log_ratios, ALPHA))
    step_s = statistics.median(bare_s) / STEPS
    print(
        f"watched loop / bare loop: {math.exp(statistics.fmean(log_ratios)):.4f} "
        f"[{low:.4f}, {high:.4f}], {rounds} rounds of {STEPS} steps of {units.seconds(step_s)}"
    )
    # Nothing waits here, so the processor's seconds are all, and other programs are left out.
    free_bare_s, free_watched_s = compare(Nothing(), rounds, time.process_time)
    extra_s = statistics.median(
        (watched - bare) / FREE_STEPS for watched, bare in zip(free_watched_s, free_bare_s)
    )
    share = extra_s / step_s
    print(
        f"watching costs {units.seconds(extra_s)} a step, {100 * share:.3f} % of that step (limit "
        f"{units.limit(OVERHEAD_LIMIT)}); steps from {units.seconds(extra_s / OVERHEAD_LIMIT)} on "
        "stay within it"
    )
    return 0 if share < OVERHEAD_LIMIT and low < 1 + OVERHEAD_LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
