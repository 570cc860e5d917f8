"""Privacy: what a run says of a person's machine without saying whose it is.

    Private (names, hosts, folders) + keep ─▶ Cleaner ─▶ clean(value): the same rows, nameless
                                                      └▶ find(text): what is left of it, if any

    /home/sam/data/photos → …/photos (the data set's own folder name stays)
    /dev/nvme0n1p2 → …/nvme0n1p2 (so do the kernel's names of disks)    any other path → …
    sam, Sam Lee → user    samsbox, samsbox.example.org → host    GPU-1b4e28ba-… → id-6f0c1d2a

Names are replaced as whole words only, and not where they tell nobody anything: `GENERIC` names,
single letters, and what the caller keeps, such as the lab's own words: a user may be called
"cold".  Main trap: labels are keys and values at once, so two that become equal must stay two,
everywhere alike.  A folder with blanks in its name that is not one of `Private.folders` is known
as a path only up to the last blank; what follows is text like any other.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
import platform
import re
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# Accounts and machines that are called so everywhere; and names that are words in every table.
GENERIC = frozenset(
    "root user users admin administrator ubuntu debian fedora centos linux windows mac jovyan "
    "runner vscode codespace guest test tester docker container ec2-user default nobody home "
    "localhost localdomain local main host vm node server machine computer desktop laptop "
    "pc mypc workstation notebook unknown none shared public common data "
    "low best better time page real bars".split()
)
DEVICES = re.compile(
    r"((sd|hd|vd|xvd)[a-z]+\d*|(nvme|mmcblk)[\dnp]+|(loop|md|dm-|zram|ram)\d+|shm)"
)
# What ends a path in a sentence, unless it stands inside quotes.
_PART = r"[^\s/\\\"'`<>|:;,()\[\]{}…]+"
_IS_SET = r"(?![^\s/\\,;=]{0,80}=)"  # "a=/mnt/x,b=/mnt/y" are two paths
# Blanks and marks may be part of a name if a slash follows soon: "/mnt/my (old) disk/photos".
_SEVERAL = (
    rf"{_PART}(?:(?:[,;:|()\[\]{{}}]|[^\S\n\r\t])+{_IS_SET}{_PART}){{0,4}}[,;()\[\]{{}}]{{0,3}}"
)
# "on /dev/sda: 81 reads/s" is no folder "sda: 81 reads".
_NO_UNIT = r"(?!(?:s|h|min|a|no|or|image|batch|step|epoch|block|trial)\b)"
# In the last name they end a sentence or stand around the path, unless letters follow at once;
# a no-break space ends none.
_LAST = rf"{_PART}(?:(?:[,;(\[{{]|[^\S\n\r\t ])+{_IS_SET}{_PART}[)\]}}]*){{0,8}}[/\\]?"
_PARTS = rf"(?:{_PART}[/\\]+|{_SEVERAL}[/\\]+{_NO_UNIT})*{_LAST}"
_LETTER = r"A-Za-z0-9\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f"  # of words with blanks between them
# What people's data lies below; found also where a letter stands before the slash: -I/home/…
_ROOTS = (
    r"(?i:home|users|root|srv|mnt|media|data|opt|export|scratch|volumes|nfs|lustre|gpfs|"
    r"var|tmp|usr|etc)"
)
_ENCODED = r"%(?:25)*(?:2[Ff]|5[Cc])"
_BELOW_ROOTS = "|".join(
    (
        rf"(?:(?<![{_LETTER}])[A-Za-z]:|(?<![\w.])\.{{1,2}})?[/\\／]+{_ROOTS}[/\\／]+{_PARTS}",
        # As in an address: %2Fhome%2F…, and %252F where it was written so twice.
        rf"{_ENCODED}[^\s\"'<>]+",
    )
)
# No path, and kept.
_URL = r"(?P<url>(?<![A-Za-z0-9])(?!file:)[A-Za-z][A-Za-z0-9+.-]+://[^\s\"'<>]*)"
_NO_TAG = r"(?!(?<=<)/[A-Za-z][\w:-]*\s*>)"  # "</script>"
_PATHS = "|".join(
    (
        _URL,
        r"file:[/\\]+[^\s\"'<>]+",
        r"(?<=[\"'`])(?:[/\\]|~[/\\]|[A-Za-z]:[/\\])[^\"'`\n]+(?=[\"'`])",
        rf"(?<![\w.…/]){_NO_TAG}/+{_PARTS}",
        # Chinese has no blanks before a path: 目录/data/photos, but 图像/秒.
        rf"(?<![{_LETTER}_.…/]){_NO_TAG}/+(?=[^\s/\\…]+[/\\]){_PARTS}",
        rf"(?<=\.)//+{_PARTS}",
        _BELOW_ROOTS,
        rf"\$[A-Za-z_]\w*[/\\]+{_PARTS}",
        rf"(?<![{_LETTER}_~])~(?:[A-Za-z_][\w.-]*)?[/\\]+{_PARTS}",
        rf"(?<![A-Za-z0-9])[A-Za-z]:[/\\]+{_PARTS}",
        rf"(?<![{_LETTER}_\\])\\\\+[\w.$-]+\\+{_PARTS}",  # \\server\share
    )
)
_UUID = r"(?:\b(?:GPU|MIG)-)?\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"
_MIN_FOLDER_PARTS = 2  # "/" and a name: the root of all is no secret


@dataclass(frozen=True, kw_only=True)
class Private:
    """What must not leave this machine."""

    names: tuple[str, ...] = ()
    """Of the person: the account, its home folder's, the full name."""
    hosts: tuple[str, ...] = ()
    """Of the machine; a domain that follows one is part of it."""
    folders: tuple[str, ...] = ()
    """Absolute, such as the home folder and those of the media."""


def of_this_machine(folders: Iterable[Path | str] = (), names: Iterable[str] = ()) -> Private:
    """Gather the person's and the machine's names, asking no network.

    Args:
        folders: that hold data or results here, beside the home folder and the current one.
        names: of other accounts, such as those of `accounts_in`.
    """
    variables = ("LOGNAME", "USER", "LNAME", "USERNAME", "SUDO_USER")
    own = [*_account(), *(os.environ.get(name, "") for name in variables)]
    hosts = [socket.gethostname(), platform.node()]
    hosts += [os.environ.get(name, "") for name in ("HOSTNAME", "COMPUTERNAME")]
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() fails where there is none
    if os.path.isabs(home):  # noqa: PTH117
        own.append(Path(home).name)
        folders = [*folders, home]
    return Private(
        names=_distinct([*own, *names]),
        # A fully qualified name: the short form alone is replaced with all that follows.
        hosts=_distinct(host.partition(".")[0] for host in hosts),
        folders=_distinct(str(Path(folder).absolute()) for folder in (*folders, Path.cwd())),
    )


def accounts_in(text: str) -> list[str]:
    """List whose home folders a text names, as it stands in JSON too."""
    return re.findall(rf"[/\\](?:home|Users)[/\\]+({_PART})", text)


def _account() -> list[str]:
    """Give the account's name, and "Sam Lee" and its words; nothing where there is no entry."""
    found = []
    with contextlib.suppress(ImportError, KeyError, OSError):
        found.append(getpass.getuser())
    with contextlib.suppress(ImportError, KeyError):  # Windows; a container's nameless account
        import pwd

        full = pwd.getpwuid(os.getuid()).pw_gecos.partition(",")[0].strip()
        found += [full, *full.split()]
    return found


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in texts if text))


class Cleaner:
    """Takes out of texts what says whose machine it was.

    Args:
        private: what must not be left.
        data: data folders; their last component stays.
        keep: words that stay although they are names, in lower case.
    """

    def __init__(
        self, private: Private, *, data: Iterable[str] = (), keep: Collection[str] = ()
    ) -> None:
        self._data = {name for name in map(_last, data) if re.search(r"\w", name)}
        kept = GENERIC | {word.lower() for word in keep}
        folders = sorted((f for f in private.folders if _is_telling(f)), key=len, reverse=True)
        # Longest first: a folder before the one that it lies in.  Blanks in them are known here.
        self._folders = [
            re.compile(
                rf"{_before(folder)}{re.escape(folder.rstrip('/'))}(?![\w-])(?:[/\\]+{_PARTS})?"
            )
            for folder in folders
        ]
        self._words = [
            *((_word(name, r""), "user") for name in _told(private.names, kept)),
            *((_word(host, r"(?:\.[a-z0-9-]+)*"), "host") for host in _told(private.hosts, kept)),
        ]
        self._labels: dict[str, str] = {}

    def clean(self, value: object) -> object:
        """Clean what JSON can hold; keys and values alike.

        Args:
            value: the first one must hold all labels as keys, as `run.json` does; whatever comes
                after it, such as rows, names them the same way.
        """
        if not self._labels:
            self._labels = self._relabel(list(_keys(value)))
        return walk(value, lambda text: self._labels.get(text) or self.text(text))

    def text(self, text: str) -> str:
        """Clean one text."""
        for folder in self._folders:
            text = folder.sub(lambda match: self._form(match[0]), text)
        text = re.sub(_PATHS, lambda m: self._url(m[0]) if m["url"] else self._form(m[0]), text)
        text = re.sub(_UUID, lambda match: _hashed(match[0]), text)
        for pattern, word in self._words:
            text = pattern.sub(word, text)
        return text

    def find(self, text: str) -> list[str]:
        """List what a text still says; empty where it says nothing."""
        return [*self._find(_PATHS, text), *re.findall(_UUID, text), *self.find_known(text)]

    def find_known(self, text: str) -> list[str]:
        """List what is known: names, folders and roots, where every slash looks like a path."""
        patterns = [*self._folders, *(pattern for pattern, _ in self._words)]
        known = [match[0] for pattern in patterns for match in pattern.finditer(text)]
        return [*self._find(f"{_URL}|{_BELOW_ROOTS}", text), *known]

    def _find(self, patterns: str, text: str) -> list[str]:
        found = re.finditer(patterns, text)
        return [m[0] for m in found if not m["url"] or self._url(m["url"]) != m["url"]]

    def _form(self, path: str) -> str:
        bare = path.rstrip(".!?")  # the end of a sentence
        last, tail = _last(bare), path[len(bare) :]
        known = last in self._data or (bare.startswith("/dev/") and DEVICES.fullmatch(last))
        return (f"…/{last}" if known else "…") + tail

    def _url(self, url: str) -> str:
        # Whom and where a URL of another kind leads to, as in ssh://sam@box/home, is private.
        is_public = re.match(r"https?://[^@/][^@]*$", url) and not re.search(_ENCODED, url)
        return url if is_public else "…"

    def _relabel(self, labels: list[str]) -> dict[str, str]:
        """Find every key its clean form; two that become the same get numbers."""
        clean = {label: self.text(label) for label in dict.fromkeys(labels)}
        taken = {label for label, text in clean.items() if label == text}
        for label, text in clean.items():
            if label == text:
                continue
            number, free = 1, text
            while free in taken:
                number += 1
                free = f"{text} ({number})"
            taken.add(free)
            clean[label] = free
        return clean


def _told(names: Iterable[str], kept: Collection[str]) -> list[str]:
    """Choose the names to replace, the longest first: a full name before its words."""
    # A single letter is everywhere: "images/s".
    told = {name for name in names if len(name) > 1 or not name.isascii()}
    return sorted((name for name in told if name.lower() not in kept), key=len, reverse=True)


def _word(name: str, tail: str) -> re.Pattern[str]:
    """Match a name as a whole word; "_", "-" and "." end one."""
    if not name.isascii():  # Chinese has no blanks between words
        return re.compile(re.escape(name) + tail)
    # Two letters are often a unit or a word when written otherwise.
    flags = re.IGNORECASE if len(name) > 2 else 0
    return re.compile(rf"(?<![{_LETTER}]){re.escape(name)}(?![{_LETTER}]){tail}", flags)


def _last(path: str) -> str:
    return re.split(r"[/\\]+", path.rstrip("/\\"))[-1]


def _is_telling(folder: str) -> bool:
    return len(Path(folder).parts) >= _MIN_FOLDER_PARTS


def _before(folder: str) -> str:
    # "see/data" may be two words; nothing that is longer is: "-I/data/photos/x".
    return rf"(?<![{_LETTER}_-])" if len(Path(folder).parts) <= _MIN_FOLDER_PARTS else ""


def _hashed(text: str) -> str:
    return f"id-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _keys(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield key
            yield from _keys(below)
    elif isinstance(value, list):
        for below in value:
            yield from _keys(below)


def walk(value: object, change: Callable[[str], str]) -> object:
    """Change every text, keys and values alike, in what JSON can hold."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): walk(below, change) for key, below in value.items()}
    if isinstance(value, list):
        return [walk(below, change) for below in value]
    return value
