"""The only place that turns numbers into text for people.

    seconds, bytes, rates, shares, ratios -> "12.4 ms", "133 KB", "123 images/s", ...

Everything else in the lab keeps plain seconds, bytes and shares.  Unknown (None) is a dash,
never a zero.  The unit is chosen after rounding: 999.7 ms is "1.00 s", not "1000 ms".
"""

from __future__ import annotations

import math

from labkit.language import Text

UNKNOWN = "–"


def seconds(s: float | None) -> str:
    """Write a duration: "850 µs", "12.4 ms", "1.83 s", "2 min 5 s", "1 h 1 min", "-1.20 s"."""
    if s is None:
        return UNKNOWN
    if s < 0:
        return f"-{seconds(-s)}"
    if s == 0:
        return "0 s"
    rounded = _round(s)
    if rounded < 1e-3:
        return f"{three_digits(s * 1e6)} µs"
    if rounded < 1:
        return f"{three_digits(s * 1e3)} ms"
    if rounded < 60:
        return f"{three_digits(s)} s"
    minutes, rest_s = divmod(round(s), 60)
    if minutes < 60:
        return f"{minutes} min {rest_s} s"
    hours, minutes = divmod(round(s / 60), 60)
    return f"{hours} h {minutes} min"


def whole_seconds(s: float) -> str:
    """Write a time that is still to come, as finely as it can be known: "12 s", "2 min 5 s"."""
    return f"{round(s)} s" if round(s) < 60 else seconds(round(s))


def count_bytes(n: float | None) -> str:
    """Write an amount of memory in decimal units: "133 KB", "1.2 GB"."""
    if n is None:
        return UNKNOWN
    n = _round(n)
    power = min(4, (len(f"{n:.0f}") - 1) // 3)
    scaled, unit = n / 1000**power, ("B", "KB", "MB", "GB", "TB")[power]
    # 9.96 would print as "10.0" with one decimal, so it already counts as two digits.
    return f"{scaled:.1f} {unit}" if power and scaled < 9.95 else f"{scaled:.0f} {unit}"


def count(n: int | None, noun: str = "") -> str:
    """Write how many there are of something: "1 page", "1,234 pages"; without a noun "1,234"."""
    if n is None:
        return UNKNOWN
    if not noun:
        return f"{n:,}"
    return Text("{n:,} {noun}").format(n=n, noun=noun if n == 1 else f"{noun}s")


def rate(images_per_s: float | None) -> str:
    """Write a throughput: "123 images/s"."""
    if images_per_s is None:
        return UNKNOWN
    return Text("{n} images/s").format(n=three_digits(images_per_s))


def percent(share: float | None) -> str:
    """Write a share (1.0 is all of it): "12.3 %"."""
    return UNKNOWN if share is None else f"{share * 100:.1f} %"


def whole_percent(share: float) -> str:
    """Write a share that changes while people look at it: "12 %"."""
    return f"{share * 100:.0f} %"


def change(ratio: float, low: float | None = None, high: float | None = None) -> str:
    """Write how far a ratio is from 1, with its interval: "+0.4 % (−4.0 to +6.0 %)"."""
    one, *ends = (f"{100 * (x - 1):+.1f}".replace("-", "−") for x in (ratio, low, high) if x)
    return f"{one} % ({' to '.join(ends)} %)" if ends else f"{one} %"


def limit(share: float) -> str:
    """Write a share that was agreed on, not measured, without a needless zero: "5 %"."""
    return f"{share * 100:.4g} %"


def delivered(got_per_s: float, wanted_per_s: float | None, noun: str) -> str:
    """Write a rate beside the one that was asked for, in one unit: "104.9 of 106.2 MB/s".

    Args:
        got_per_s: what was measured.
        wanted_per_s: what was asked for; None: as much as there is.
        noun: "bytes", or what else is counted.
    """
    scale = 1e6 if noun == "bytes" else 1
    unit = "MB/s" if noun == "bytes" else f"{noun}/s"
    rates = [x / scale for x in (got_per_s, wanted_per_s) if x is not None]
    decimals = 1 if max(rates) < 1000 else 0
    return f"{' of '.join(f'{x:,.{decimals}f}' for x in rates)} {unit}"


def minute(utc: str) -> str:
    """Write a moment in UTC: "2026-11-21T14:03:22Z" -> "2026-11-21 14:03 UTC"."""
    return f"{utc[:10]} {utc[11:16]} UTC"


def normalized(x: float | None, low: float | None = None, high: float | None = None) -> str:
    """Write a normalized time: "0.894", "0.00002"; with its interval: "0.87 [0.81, 0.97]"."""
    if x is None:
        return UNKNOWN
    # What would be written as 0 has one digit.
    decimals = 3 if x >= 0.0005 or x <= 0 else -math.floor(math.log10(x))
    if low is not None and high is not None:
        decimals = max(decimals, _decimals(low, high))
    text = f"{x:.{decimals}f}" if x < 9.9995 else three_digits(x)
    return text if low is None else f"{text} {interval(low, high)}"


def interval(low: float | None, high: float | None) -> str:
    """Write an interval of normalized times: "[0.81, 0.97]"."""
    if low is None or high is None:
        return UNKNOWN
    decimals = _decimals(low, high)
    # Two noisy blocks can give a bound in the thousands, of which no digit means anything.
    texts = [f"{x:.{decimals}f}" if x < 1000 else "over 999" for x in (low, high)]
    return f"[{', '.join(texts)}]"


def _decimals(low: float, high: float) -> int:
    least = 3 if high - low < 0.1 else 2
    if 0 < high < 0.0005:  # would be written as 0
        least = 1 - math.floor(math.log10(high))
    # As many decimals as show on which side of 1 a bound lies.
    return next(
        n
        for n in range(least, least + 17)
        if all(x == 1 or float(f"{x:.{n}f}") != 1 for x in (low, high))
    )


def _round(x: float) -> float:
    return float(f"{x:.2e}")  # three significant digits


def three_digits(x: float) -> str:
    """Write a number with three digits: "4.95", "1,230"."""
    x = _round(x)
    decimals = max(0, 2 - math.floor(math.log10(abs(x)))) if x else 0
    return f"{x:,.{decimals}f}"


def text_of(value: object) -> str:
    """Return a setting's value as the form and the command line have it: yes, no, 4, cold."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
