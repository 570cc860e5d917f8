"""What a run says of memory, disks and swap: the words under the storage chart.

    settings + rows ─ pairs that differ only in the cache ──┐
                    ─ a medium in memory against the disks ─┼─▶ sentences, each with its numbers
                    ─ bytes from the disk, pages swapped ───┘

Each sentence is there because the rows of this run support it; an experiment without a cold
variant and its warm or later twin says nothing.  Which variants belong together is read off
their settings.  Main trap: equal times alone do not say why they are equal.  That the page
cache makes them so takes three things: an equality that the blocks bear out, no swapping, and
the same disk being slower when it is read cold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from labkit import units
from labkit.block_ratios import Compared, compare
from labkit.counted import SWAPPED
from labkit.parts.storage import IN_MEMORY
from labkit.parts.storage.cache_state import COLD_MAX_SHARE, WARM_MIN_SHARE
from labkit.row_words import EpochBar, epoch_bars, join, quote
from labkit.settings import AS_PUBLISHED, MIN_JUDGED_BLOCKS
from labkit.summary import Row, Summary

# Directories and programs are read too, so a run from memory still fetches a little.
MEMORY_MAX_READ_SHARE = 0.01
# A cold epoch fetches its files once; whole pages, directories and read-ahead blur that.
ONE_EPOCH = (0.8, 1.2)
EQUAL = "no practical difference"


def findings(info: Mapping[str, object], summary: Summary) -> tuple[str, ...]:
    """Say what a run's rows support about memory, disks and swap.

    Args:
        info: what `run.json` holds; needs the variants' settings.
        summary: what `summary.summarize` returns for it.

    Returns:
        Sentences; none without two measured variants that differ only in the cache.
    """
    settings: Mapping[str, Mapping[str, object]] = info["variants"]
    rows = [row for row in summary.rows if row.epochs_s and row.variant in settings]
    pairs = [(cold, other) for cold in rows for other in rows if _is_pair(settings, cold, other)]
    if not pairs:
        return ()
    memory = [row for row in rows if settings[row.variant].get("storage") in IN_MEMORY]
    # The baseline against memory is what the chart of normalized times shows.
    read_cold = [
        (cold, row)
        for cold, _ in pairs
        for row in memory
        if cold.variant != summary.baseline and _differ_in_medium(settings, cold, row)
    ]
    held = {
        row.variant: [
            disk
            for disk in rows
            if disk not in memory and _from_memory(disk) and _differ_in_medium(settings, disk, row)
        ]
        for row in memory
        if _from_memory(row)
    }
    wanted = [(a, b, part) for a, b in pairs + read_cold for part in ("epoch 1", "later")]
    wanted += [(a, b, "total") for a in memory for b in held.get(a.variant, ())]
    compared = compare(summary, wanted)
    in_order = info.get("protocol") == AS_PUBLISHED
    said = _stand_ins(rows)
    if in_order:
        said += [_order_alone(summary, other) for _, other in pairs]
    said += [_cold_and_warm(cold, other, compared, in_order=in_order) for cold, other in pairs]
    said += [_cold_and_memory(cold, row, compared) for cold, row in read_cold]
    said.append(_swap(rows, summary.rejected if summary.are_rejected_left_out else {}))
    for row in memory:
        if disks := held.get(row.variant):
            said += _memory_and_held(row, disks, pairs, compared, judged=summary.judged)
    return tuple(said)


# --- which variants belong together -------------------------------------------------------


def _is_pair(settings: Mapping[str, Mapping], cold: Row, other: Row) -> bool:
    """Whether two variants are the same but for the cache, and only the first is cold."""
    one, two = settings[cold.variant], settings[other.variant]
    return (
        one.get("cache") == "cold" and two.get("cache") != "cold"
        and {**one, "cache": ""} == {**two, "cache": ""}
    )  # fmt: skip


def _differ_in_medium(settings: Mapping[str, Mapping], one: Row, other: Row) -> bool:
    """Whether two variants are the same but for the medium and the cache."""
    rest = {"storage": "", "cache": ""}
    return {**settings[one.variant], **rest} == {**settings[other.variant], **rest}


def _from_memory(row: Row) -> bool:
    """Whether all was in memory before, and next to nothing came from a disk."""
    held, read = row.resident_share_before, row.device_read_share
    if held is None or read is None:
        return False
    return held >= WARM_MIN_SHARE and read <= MEMORY_MAX_READ_SHARE


# --- sentences ----------------------------------------------------------------------------


def _stand_ins(rows: Sequence[Row]) -> list[str]:
    by_label: dict[str, list[str]] = {}
    for row in rows:
        for label in row.labels.get("storage", "").split(" / "):
            by_label.setdefault(label, []).append(row.variant)
    said, modelled = [], []
    for label, names in by_label.items():
        kind, bracket, detail = label.partition("(")
        detail = f" {bracket}{detail}" if detail else ""
        if kind == "throttled":
            said.append(
                f"In place of a real disk, {join(names)} read one that the kernel slows "
                f"down{detail}: what they show is this stand-in's."
            )
        elif kind == "emulated distance":
            said.append(
                f"In place of a real distance, the data of {join(names)} came from a server on "
                f"this machine that answers as late{detail}: what they show is this stand-in's."
            )
        elif kind == "modelled":
            modelled.append(f"{join(names)}{detail}")
        elif kind == "unknown":
            said.append(
                f"What kind of disk {join(names)} read is not known{detail}: it need not be what "
                "the name says."
            )
    if modelled:
        said.append(
            f"All media are modelled, {'; '.join(modelled)}: their times, what they hold in memory "
            "and what they read are the model's."
        )
    return said


def _order_alone(summary: Summary, again: Row) -> str:
    """Say what the document's order gave a variant in which nothing was changed."""
    time = units.normalized(again.normalized_time)
    if again.ci_low is not None:
        time += f" {units.interval(again.ci_low, again.ci_high)}"
    said = (
        f"{quote(again.variant)} changes nothing and took {time} of {quote(summary.baseline)}, "
        "which ran first and cold"
    )
    if again.normalized_time >= 1:
        return f"{said}: the order and the cache gave it nothing."
    doubt = " or noise, of which one trial each says nothing" if summary.n_blocks < 2 else ""
    return f"{said}: as much as that may be the order's and the cache's doing{doubt}."


def _cold_and_warm(cold: Row, other: Row, compared: Compared, *, in_order: bool) -> str:
    """Say what the cache alone does, and what shows that it was the cache."""
    place = "their place in the order and in " if in_order else ""
    said = (
        f"{join([cold.variant, other.variant])} differ only in {place}what memory held before "
        f"epoch 1 ({_held(cold)} and {_held(other)} of the files). "
        f"{_epochs(cold, other, compared)}. {_bytes_read(cold)}"
    )
    read = other.device_read_share
    if read is not None and read > MEMORY_MAX_READ_SHARE:
        said += f" Of the bytes of {quote(other.variant)}, {units.percent(read)} did too."
    return said


def _cold_and_memory(cold: Row, memory: Row, compared: Compared) -> str:
    """Say in which epoch a cold disk is behind memory."""
    names = (cold.variant, memory.variant)
    epochs = _epochs(cold, memory, compared)
    said = f"{quote(cold.variant)} (cold) beside {quote(memory.variant)}: {_lower(epochs)}."
    first, later = (compared.get((*names, part)) for part in ("epoch 1", "later"))
    slower_then_equal = first and later and (first.verdict, later.verdict) == ("slower", EQUAL)
    if slower_then_equal and _is_read_once(cold) and not _is_modelled(cold):
        said += " So the disk costs time while it is read, and not after."
    return said


def _memory_and_held(
    memory: Row,
    held: Sequence[Row],
    pairs: Sequence[tuple[Row, Row]],
    compared: Compared,
    *,
    judged: bool,
) -> list[str]:
    """Say how a medium in memory compares with disks whose files memory holds, and why."""
    times = [f"{quote(row.variant)} {units.seconds(row.time_s)}" for row in (memory, *held)]
    names = join([row.variant for row in (memory, *held)])
    said = (
        f"{names} had all their files in memory and fetched at most "
        f"{units.percent(max(row.device_read_share for row in (memory, *held)))} of their bytes "
        f"from a disk. Their epochs took together: {', '.join(times)}"
    )
    if not judged:
        return [f"{said}; numbers, no verdict."]
    sentences = [f"{said}."]
    for row in held:
        found = compared.get((memory.variant, row.variant, "total"))
        if found is None:
            sentences.append(
                f"{quote(memory.variant)} and {quote(row.variant)} are not judged: "
                f"fewer than {MIN_JUDGED_BLOCKS} blocks have both."
            )
            continue
        sentence = f"{quote(memory.variant)} against {quote(row.variant)}: {found}."
        if found.verdict == EQUAL:
            sentence += _why_equal(memory, row, pairs, compared)
        sentences.append(sentence)
    return sentences


def _why_equal(memory: Row, held: Row, pairs: Sequence[tuple[Row, Row]], compared: Compared) -> str:
    if memory.swapped_pages != 0 or held.swapped_pages != 0 or _is_modelled(held):
        return ""
    twins = [cold for cold, other in pairs if other is held]
    cold = twins[0] if twins else None
    first = cold and compared.get((cold.variant, held.variant, "epoch 1"))
    if first and first.verdict == "slower":
        return (
            f" Nothing was swapped, and {quote(cold.variant)}, the same disk read cold, is slower "
            "in epoch 1: the page cache makes them equal, not swap."
        )
    if first and first.verdict == EQUAL:
        return (
            f" Nothing was swapped, and {quote(cold.variant)}, the same disk read cold, takes as "
            "long: reading is not what limits these epochs."
        )
    return " Nothing was swapped, so swap is not what makes them equal."


def _swap(rows: Sequence[Row], rejected: Mapping[int, str]) -> str:
    n_swapped = sum(why.endswith(SWAPPED) for why in rejected.values())
    if n_swapped:
        return (
            f"{units.count(n_swapped, 'block')} of this run swapped and do not count: what swap "
            "does to these times is not measured here."
        )
    swapped = [row for row in rows if row.swapped_pages]
    unknown = [row.variant for row in rows if row.swapped_pages is None]
    if not swapped and not unknown:
        return "No page was swapped in or out during these trials: swap explains nothing here."
    said = []
    if swapped:
        counts = [
            f"{units.count(row.swapped_pages, 'page')} in the trials of {quote(row.variant)}"
            for row in swapped
        ]
        said.append(
            f"The machine swapped {', '.join(counts)}: whatever program they belong to, swap may "
            "be part of these times."
        )
    if unknown:
        said.append(
            f"What was swapped in the trials of {join(unknown)} could not be measured: "
            "nothing here rules swap out."
        )
    return " ".join(said)


def _epochs(one: Row, other: Row, compared: Compared) -> str:
    """Put two variants' epochs side by side: "Epoch 1 took … and …, epoch 2 … and …"."""

    def beside(a: EpochBar, b: EpochBar, part: str) -> str:
        found = compared.get((one.variant, other.variant, part))
        times = f"{units.seconds(a.mean_s)} and {units.seconds(b.mean_s)}"
        return f"{times} ({found})" if found else times

    (first, *later), (other_first, *other_later) = epoch_bars(one), epoch_bars(other)
    said = f"Epoch 1 took {beside(first, other_first, 'epoch 1')}"
    for a, b in zip(later, other_later):
        said += f", {a.name} {beside(a, b, 'later')}"
    return said


def _bytes_read(cold: Row) -> str:
    """Say what came from the disk, and what follows if nothing was in memory before."""
    share, n = cold.device_read_share, len(cold.epochs_s[0])
    if share is None:
        return "How much came from the disk could not be measured."
    said = f"Of the bytes of {quote(cold.variant)}, {units.percent(share)} came from the disk"
    if not _is_known_cold(cold):
        return f"{said}."
    if _is_read_once(cold):
        later = "epoch 2" if n == 2 else "the later ones"
        because = f", about one epoch's: epoch 1 read the disk, {later} memory"
        return f"{said}{because if n > 1 else ''}."
    if share * n < 1:
        return f"{said}, less than one epoch's: where the others came from is not known."
    return (
        f"{said}, more than one epoch's: memory did not keep the files, or more was read ahead "
        "than was asked for."
    )


def _is_modelled(row: Row) -> bool:
    """Whether its cause is known beforehand: a model does what it was made to do."""
    return row.labels.get("storage", "").startswith("modelled")


def _is_known_cold(row: Row) -> bool:
    share = row.resident_share_before
    return share is not None and share <= COLD_MAX_SHARE


def _is_read_once(row: Row) -> bool:
    """Whether nothing was in memory before, and all files came from the disk just once."""
    low, high = ONE_EPOCH
    share, n = row.device_read_share, len(row.epochs_s[0])
    return _is_known_cold(row) and share is not None and low <= share * n <= high


def _held(row: Row) -> str:
    share = row.resident_share_before
    return "an unknown share" if share is None else units.percent(share)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
