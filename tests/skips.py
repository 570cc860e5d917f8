"""Why tests were skipped: always printed; with FAIL_ON_SKIPS, a reason not in the table fails.

CI sets it, and so does `make gpu`.
"""

from __future__ import annotations

import os
import re
from collections import Counter

import pytest

FAILS_ON_SKIPS = os.environ.get("FAIL_ON_SKIPS") == "1"
# Reason of a skip -> why tests may be skipped for it.
ALLOWED = {
    "there is no NVIDIA GPU": "`make gpu` runs these tests where there is one",
    "there is an NVIDIA GPU": "what is said without one",
    r"not installed: (tensorflow|nvidia\.dali|spdl|webdataset|torch(codec|vision))": (
        "too large for the dev extra, or of the extra rivals"
    ),
    "where (no C\\+\\+ compiler is|Python's headers are not) installed": "torch.compile takes both",
    "no CJK font is installed": "fonts are the machine's",
    "only root ": "CI may run as another user",
    "(nothing|no disk in a file) can be mounted here: |no overlayfs here: ": (
        "a container may not be allowed to mount"
    ),
    "(setpriv|unshare) cannot do this here": "nor to change its privileges and name spaces",
    "no control group that limits (cpu|io) can be made here": "nor to make control groups",
    "the temporary directory is not on a disk": "a container's may be in memory",
    "no device counts the reads": "btrfs and overlayfs have none",
}


def fails(reason: str) -> bool:
    """Return whether a skip for this reason makes the session fail."""
    return FAILS_ON_SKIPS and not any(re.match(allowed, reason) for allowed in ALLOWED)


def reasons(reporter: pytest.TerminalReporter) -> Counter[str]:
    """Count the skipped tests by reason; a whole file that is skipped counts as one."""
    where_and_why = [report.longrepr for report in reporter.stats.get("skipped", ())]
    return Counter(str(why).removeprefix("Skipped: ") for _, _, why in where_and_why)


def summarize(reporter: pytest.TerminalReporter) -> None:
    """Print how many tests were skipped for which reason."""
    for reason, count in reasons(reporter).most_common():
        mark = "SKIPPED, which tests/skips.py does not allow" if fails(reason) else "skipped"
        reporter.write_line(f"{mark}: {count} × {reason}", red=fails(reason))
