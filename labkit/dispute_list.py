"""What is disputed, as data: one question, who says what, and the comparisons that settle it.

A comparison is one variant's time divided by another's in the same blocks of one experiment; the
other need not be that experiment's baseline.  Numbers are those of DOCUMENTS D; what is missing
there is answered elsewhere: 5 and 8 by notebooks 03 and 05, others by `claims`.  Main trap: what
a side says is put down in its own terms, and figures only where its source has them.

Source: DOCUMENTS D, where each thread and page is named; docs/documents.md.
"""

from __future__ import annotations

from dataclasses import dataclass

NO_MATTER = "no practical difference"
HELPS = ("faster", NO_MATTER)
HURTS = ("slower", NO_MATTER)


@dataclass(frozen=True, kw_only=True)
class Side:
    """Somebody who says something."""

    by: str
    says: str


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """Two variants whose times are compared within blocks."""

    experiment: str
    variant: str
    against: str
    """What its time is divided by."""
    expected: tuple[str, ...] = ()
    """The verdict that each side of the dispute would expect, "" where it says nothing of this;
    nothing at all where no side does."""


@dataclass(frozen=True, kw_only=True)
class Dispute:
    """A question on which the documents and others disagree."""

    number: int
    """In DOCUMENTS D."""
    question: str
    sides: tuple[Side, ...]
    contrasts: tuple[Contrast, ...] = ()
    footnote: str = ""
    """What settles the question without a measurement."""
    needs_equal_work: bool = False
    """Whether training itself is doubted, so that losses stand beside the times."""


def _contrasts(
    experiment: str, *pairs: tuple[str, str], expected: tuple[str, ...] = ()
) -> tuple[Contrast, ...]:
    return tuple(
        Contrast(experiment=experiment, variant=variant, against=against, expected=expected)
        for variant, against in pairs
    )


THREAD = "prefetch_generator"
ANEW = "started anew"

DISPUTES: tuple[Dispute, ...] = (
    Dispute(
        number=1,
        question="Does a thread behind the loader (prefetch_generator) save anything?",
        sides=(
            Side(
                by="[004] 2.1",
                says="Yes: workers are refilled only when all are empty; 0.894 in experiment 1.",
            ),
            Side(
                by="Lightning #1454, lightly #1304",
                says="No: the loader has a queue of its own, and prefetch_factor makes it deeper.",
            ),
        ),
        contrasts=(
            *_contrasts(
                "prefetching_in_depth",
                (THREAD, "original"),
                (THREAD, "equal depth"),
                (f"{THREAD}, no waiting", "original, no waiting"),
                (f"{THREAD}, not pinned", "original, not pinned"),
                (f"{THREAD}, not pinned", "equal depth, not pinned"),
                expected=HELPS,
            ),
            # Without workers there is no queue: of this only the document speaks.
            *_contrasts(
                "prefetching_in_depth",
                (f"no workers, {THREAD}", "no workers"),
                (f"no workers, {THREAD}, not pinned", "no workers, not pinned"),
                expected=("faster", ""),
            ),
        ),
    ),
    Dispute(
        number=2,
        question="Does prefetch_factor count samples or batches?",
        sides=(
            Side(by="[001] 1.5", says="Samples of each worker; unset, CPU and GPU take turns."),
            Side(
                by="PyTorch #100703, #74558",
                says="Batches of each worker; “samples” was an error of the documentation.",
            ),
        ),
        footnote="Batches of each worker, as PyTorch's documentation says: with batches of 8, 2 "
        "workers and prefetch_factor=4, a DataLoader takes 64 samples before its first batch is "
        "asked for.",
    ),
    Dispute(
        number=3,
        question="Does a side stream (data_prefetcher) save anything beside pinned memory?",
        sides=(
            Side(
                by="[003], [004] 2.2",
                says="Yes: it hides the copy to the GPU, from pinned memory; 0.891 in experiment 1 "
                "of [004].",
            ),
            Side(
                by="apex #304 (its opener), Lightning #2611, PyTorch's tutorial",
                says="No: no gain seen; in the tutorial 3.7 times the speed without, 3.6 with it. "
                "One async loader trained worse: accuracy 0.906 fell to 0.759 "
                "(lightning-bolts #957).",
            ),
        ),
        contrasts=(
            *_contrasts(
                "pin_memory",
                ("pinned, side stream", "pinned"),
                ("pinned, side stream, no waiting", "pinned, no waiting"),
                expected=HELPS,
            ),
            *_contrasts(
                "prefetching_in_depth",
                ("data_prefetcher", "original"),
                ("data_prefetcher, no waiting", "original, no waiting"),
                ("no workers, data_prefetcher", "no workers"),
                expected=HELPS,
            ),
            # Ordinary memory hides nothing, both say; and what not waiting does by itself.
            *_contrasts(
                "pin_memory",
                ("not pinned, side stream", "not pinned"),
                ("not pinned, side stream, no waiting", "not pinned, no waiting"),
                expected=(NO_MATTER, NO_MATTER),
            ),
            *_contrasts("pin_memory", ("pinned, no waiting", "pinned")),
        ),
        needs_equal_work=True,
    ),
    Dispute(
        number=4,
        question="Does pin_memory save anything?",
        sides=(
            Side(
                by="[001] 1.6, [002]; discuss.pytorch.org 181327",
                says="Yes: a little; more than 30 % in the thread.",
            ),
            Side(
                by="allennlp #4670, detectron2 #648",
                says="No: slower on the whole; or loading looks faster, and a step takes as long.",
            ),
        ),
        contrasts=(
            *_contrasts(
                "pin_memory",
                ("pinned", "not pinned"),
                ("pinned, no waiting", "not pinned, no waiting"),
                ("pinned, side stream", "not pinned, side stream"),
                ("pinned, uint8", "not pinned, uint8"),
                expected=HELPS,
            ),
            *_contrasts(
                "prefetching_in_depth",
                ("original", "original, not pinned"),
                ("no workers", "no workers, not pinned"),
                expected=HELPS,
            ),
        ),
    ),
    Dispute(
        number=6,
        question="Does one packed file read faster than many small ones?",
        sides=(
            Side(
                by="[000], [001] 3.1.3, [004] 2.6; Image2LMDB #6",
                says="Yes; over NFS 1.5 times as fast with LMDB.",
            ),
            Side(
                by="Efficient-PyTorch #4, #18, #21; py-lmdb #281",
                says="No: slower from an SSD or shuffled; cold over NFS a fifth of the speed, "
                "equal from the second epoch on.",
            ),
        ),
        contrasts=_contrasts(
            "packing",
            *((name, "folder") for name in ("hdf5", "pth", "lmdb", "tfrecord")),
            ("lmdb, sequential", "folder, sequential"),
            ("lmdb, warm", "folder, warm"),
            expected=("faster", "slower"),
        ),
    ),
    Dispute(
        number=7,
        question="Do OpenCV's own threads slow loader workers down?",
        sides=(
            Side(
                by="mmdetection #6867, PaddleSeg #2640",
                says="Yes: 0.232 s an iteration with 16 threads, 0.213 without any; 18 % less "
                "speed without a limit.",
            ),
            Side(
                by="homr #128, super-gradients #642",
                says="No: as fast, at more CPU time; a limit is not needed.",
            ),
        ),
        contrasts=_contrasts(
            "opencv_threads",
            ("1 in each worker", "none"),
            ("2 in each worker", "none"),
            ("2, no workers", "none, no workers"),
            expected=HURTS,
        ),
    ),
    Dispute(
        number=9,
        question="Does it save time to keep workers between epochs?",
        sides=(
            Side(by="PyTorch #55455 (spawned)", says="Yes: on Windows 9.5 it/s instead of 7.6."),
            Side(by="delta-interpolator #3 (forked)", says="No: on Linux it makes no difference."),
        ),
        contrasts=(
            *_contrasts("persistent_workers", ("kept", ANEW), expected=HELPS),
            *_contrasts("short_epochs", ("kept", ANEW), expected=HELPS),
            *_contrasts(
                "persistent_workers", ("spawned, kept", f"spawned, {ANEW}"), expected=("faster", "")
            ),
            *_contrasts(
                "short_epochs", ("spawned, kept", f"spawned, {ANEW}"), expected=("faster", "")
            ),
            *_contrasts("persistent_workers", ("fork server, kept", f"fork server, {ANEW}")),
        ),
    ),
    Dispute(
        number=10,
        question="How many workers does the loader need?",
        sides=(
            Side(by="[002] 3.3", says="The CPU's threads at most, usually 8 or 12."),
            Side(by="[004] 2.4", says="As many as CPU cores or as GPUs; too many block."),
            Side(by="PyTorch's tutorial", says="2 to 4 for each GPU, then profile."),
        ),
        contrasts=_contrasts(
            "workers",
            ("no workers", "as many as cores"),
            ("twice as many", "as many as cores"),
        ),
    ),
    Dispute(
        number=11,
        question="Must the batch size be a multiple of 2, or of 4?",
        sides=(
            Side(by="[002] 3.1", says="Yes: of 2, better of 4."),
            Side(
                by="Raschka, “batch size” (2022)",
                says="Powers of two are doubtful; NVIDIA's multiples of 8 concern Tensor Cores.",
            ),
        ),
        contrasts=_contrasts(
            "batch_size",
            ("21 (odd)", "20 (multiple of 4)"),
            ("15 (odd)", "14 (multiple of 2)"),
            expected=HURTS,
        ),
    ),
)
