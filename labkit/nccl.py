"""Read from NCCL's log which transports connect the ranks, and whether GPUDirect RDMA is in use.

Source: the lines of src/transport, src/graph/paths.cc and src/init.cc of NCCL 2.4 to 2.28.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from labkit import units
from labkit.report.text_table import text_table

if TYPE_CHECKING:
    import pandas as pd

# A channel was "Ring 00 : 0 -> 1" in 2.4; then "Channel 00 : 0[1a000] -> 1[1b000]", since 2.12
# "Channel 00/0", since 2.18 with the device's number in the brackets.  "Ring 00 : 0 -> 1 -> 0" and
# "Channel 00/02 : 0 1" are the topology.
LINE = re.compile(
    r"""
    CCL\ version[\ :]+(?P<version>\d\S*)
    | (?P<nvls>\d+)\ nvls\ channels
    | NCCL\ INFO\ (?:Ring|Channel|Coll|CollNet)\ (?P<channel>\d+)(?:/(?P<connection>\d+))?\ :
      \ (?P<source>\d+)(?:\[\w+\])?(?:\ ->\ (?P<target>\d+)(?:\[\w+\])?)?
      (?:\ \[(?P<end>send|receive)\])?\ via\ (?P<via>.+?)(?:\ comm\ 0x.*)?$
    | NCCL\ (?:INFO|WARN)\ (?P<disabled>.*(?:
        isabled\ (?:for|between|as|without)\b|isabling\ (?:GDR|CollNet)
        | not\ available|No\ device\ found
        | Failed\ to\ (?:open\ libibverbs|initialize\ NET|bind\ NVLink\ SHARP)|Could\ not\ enable
        | _DISABLE\ set\ by\ environment\ to\ (?!0)|_ENABLE\ set\ by\ environment\ to\ 0
        | (?:GDR_\w+|P2P_LEVEL)\ set\ by\ environment\ to\ (?:0|LOC)
      ).*)
    """,
    re.VERBOSE,
)
# Before each record: host, process, thread and GPU.
HOST, IDS = r"[\w.-]+", r":\d+:\d+ \[\d+\] NCCL "
COLUMNS = ["ranks", "transport", "channels", "in NCCL's words"]


class Channel(NamedTuple):
    """A channel between two ranks, or one end of it, as a line of the log has it."""

    channel: int
    connection: int | None
    """None before NCCL 2.12."""
    source: int
    """Rank that sends; of collnet the only rank."""
    target: int | None
    """Rank that receives; None for collnet, whose other end is the network's switch."""
    end: str
    """Which end chose the transport: send or receive; "" where it is the same for both."""
    transport: str
    """P2P, shared memory, sockets, InfiniBand (or RoCE), collnet, or the name of a plugin."""
    gdrdma: bool | None
    """Whether this end uses GPUDirect RDMA; None where no network is used."""
    via: str
    """The transport in NCCL's own words."""

    @property
    def ranks(self) -> str:
        """Which ranks, whatever the direction."""
        if self.target is None:
            return f"at rank {self.source}"
        return "between ranks {} and {}".format(*sorted((self.source, self.target)))


@dataclass(frozen=True, kw_only=True)
class NcclLog:
    """What NCCL logged; shows itself as a table with a row per pair of ranks and transport."""

    version: str
    """NCCL's; several where ranks differ, "" where the log has none."""
    channels: tuple[Channel, ...]
    """Each once, also where several communicators have the same."""
    nvls_channels: int
    """Channels of NVLink SHARP, which connects all GPUs of a machine instead of pairs."""
    disabled: tuple[str, ...]
    """What is disabled or missing and why, in NCCL's own words."""

    @property
    def sentence(self) -> str:
        """Whether GPUDirect RDMA is in use, and where it is not."""
        if not self.channels:
            return "No transport is known: this log has no channels"
        ends = [one for one in self.channels if one.gdrdma is not None]
        if not ends:
            return "No GPUDirect RDMA: no channel uses a network"
        lacking = [one for one in ends if not one.gdrdma]
        rdma, is_in_part = "No GPUDirect RDMA", len(lacking) < len(ends)
        if is_in_part:
            # A channel has two ends, which choose for themselves.
            network, without = ({one[:4] for one in some} for some in (ends, lacking))
            count = units.count(len(network), "network channel")
            rdma = f"GPUDirect RDMA on {len(network - without)} of {count}"
        where: dict[str, dict[str, None]] = {}
        for one in lacking:
            name = f"without it {one.transport} [{one.end}]" if is_in_part else one.transport
            where.setdefault(name, {})[one.ranks] = None
        reasons = [
            f"{name} {first}" + (f" and {len(others)} others" if others else "")
            for name, (first, *others) in where.items()
        ]
        return ": ".join(filter(None, (rdma, "; ".join(reasons))))

    def table(self) -> pd.DataFrame:
        """Return a row per channel and end, with the fields of `Channel` as columns."""
        import pandas as pd

        made = pd.DataFrame(list(self.channels), columns=Channel._fields)
        return made.astype({"connection": "Int64", "target": "Int64", "gdrdma": "boolean"})

    def _rows(self) -> list[tuple[str, str, str, str]]:
        """Return the cells of a row per pair of ranks and transport, see `COLUMNS`."""
        channels_by_way: dict[tuple[str, str], list[Channel]] = {}
        for one in self.channels:
            ranks = " → ".join(str(rank) for rank in (one.source, one.target) if rank is not None)
            direct = " with GPUDirect RDMA" if one.gdrdma else ""
            channels_by_way.setdefault((ranks, one.transport + direct), []).append(one)
        return [
            (
                *names,
                str(len({one[:2] for one in same})),
                ", ".join(dict.fromkeys(f"{one.end} {one.via}".strip() for one in same)),
            )
            for names, same in channels_by_way.items()
        ]

    def _heading(self) -> list[str]:
        heading = [self.sentence]
        if self.version:
            heading.append(f"NCCL {self.version}")
        if self.nvls_channels:
            heading.append(units.count(self.nvls_channels, "NVLS channel"))
        return heading

    def _notes(self) -> list[str]:
        alike: dict[str, list[str]] = {}
        for text in self.disabled:
            # Without the numbers of devices, and of buses in hexadecimal digits.
            alike.setdefault(re.sub(r"[\da-f]*\d[\da-f]*", "", text), []).append(text)
        return [
            f"{first} ({len(others)} more like it)" if others else first
            for first, *others in alike.values()
        ]

    def __repr__(self) -> str:
        return text_table(COLUMNS, self._rows(), heading=self._heading(), notes=self._notes())

    def _repr_html_(self) -> str:
        import pandas as pd

        from labkit.report.table import Table

        frame = pd.DataFrame(self._rows(), columns=COLUMNS).set_index(COLUMNS[0])
        return Table(frame, heading=self._heading(), notes=self._notes()).to_html()


def read_nccl_log(path: Path | str) -> NcclLog:
    """Read which transports NCCL uses between ranks, from what it prints with NCCL_DEBUG=INFO.

    Args:
        path: output of one or several ranks, with or without the prefixes of mpirun.

    Returns:
        Transports, NCCL's version, what is disabled, and a sentence on GPUDirect RDMA.

    Raises:
        ValueError: the file cannot be read, or NCCL did not write it.
    """
    lines, why = [], ""
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as log:
            lines = [line.rstrip() for line in log if "CCL" in line]
    except OSError as error:
        why = f" ({error.strerror})"
    if not any("NCCL INFO" in line for line in lines):
        raise ValueError(
            f"path must be a file with lines of NCCL INFO, got {path}{why}; "
            "run the training with NCCL_DEBUG=INFO and keep what it prints"
        )
    # Where processes print at the same time, a newline may be missing between two records.
    hosts = {re.escape(first[1]) for line in lines if (first := re.search(f"({HOST}){IDS}", line))}
    begin = re.compile(f"(?=(?:{'|'.join(hosts)}){IDS})")
    records = [record for line in lines for record in begin.split(line)]
    matches = [match for record in records if (match := LINE.search(record))]

    def distinct(name: str) -> dict[str, None]:
        return dict.fromkeys(match[name] for match in matches if match[name])

    return NcclLog(
        version=" and ".join(distinct("version")),
        channels=tuple(dict.fromkeys(_channel(match) for match in matches if match["via"])),
        nvls_channels=max(map(int, distinct("nvls")), default=0),
        disabled=tuple(distinct("disabled")),
    )


def _channel(match: re.Match[str]) -> Channel:
    kind, name, *_ = f"{match['via']}/".split("/")
    used = name if kind == "NET" else kind
    transports = {
        "SHM": "shared memory",
        "direct shared memory": "shared memory",
        "COLLNET": "collnet",
        "Socket": "sockets",
    }
    target, connection = match["target"], match["connection"]
    return Channel(
        channel=int(match["channel"]),
        connection=int(connection) if connection else None,
        source=int(match["source"]),
        target=int(target) if target else None,
        end=match["end"] or "",
        transport="InfiniBand" if used.startswith("IB") else transports.get(used, used),
        gdrdma="/GDRDMA" in match["via"] if kind in ("NET", "COLLNET") else None,
        via=match["via"],
    )
