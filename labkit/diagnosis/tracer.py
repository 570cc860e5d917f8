"""What making a sample takes, stage by stage, by samples of the stack of the thread that makes it.

    torch's fetch ─▶ frames, from outside in ── rules ──▶ read 1.2 ms, decode 5.0 ms,
                                                          torchvision.Resize 0.9 ms, …

    builtin open, FileIO.read, h5py, zipfile …     read
    cv2.imdecode, simplejpeg, PIL's load …         decode, as the user's own functions of bytes
    Compose, Subset, a data set's own methods      containers: what they call are stages
    everything else that these call                a stage of its own name

Seconds count for the innermost stage: a read inside a decoder is reading, and so is one inside a
transform, whose name is kept.  pyinstrument's hook, which is written in C, calls back at the first
call or return after each interval, so a read much shorter than that before a long decode may be
missed.

Names are hints.  The user's `read_sample` may decode and resize, too, so it counts as a container;
only what is named after decoding is taken at its word.  Functions of a C extension made with
Cython are not reported to the hook and count for their caller.
"""

from __future__ import annotations

import re
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from operator import add
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

# Rules for functions, whatever calls them: the kind of stage that they begin, or how they count.
READ, DECODE, TRANSFORM = "read", "decode", "transform"
READS_OPENLY = "reads openly"  # the user's own: what it calls are stages, but not what waits
OPEN = "container"
BY_OBJECT = "by its object"  # __call__ and the like: a container, or a transform?

READ_WORDS = frozenset(("read", "load", "open", "fetch", "download", "pread", "recv"))
DECODE_WORDS = frozenset(("decode", "decoder", "imdecode", "imread", "decompress", "loader"))
PICTURE_WORDS = frozenset(
    ("image", "images", "img", "jpeg", "jpg", "png", "pil", "picture", "photo", "frame", "frames",
     "video", "audio", "wav")
)  # fmt: skip
READING_LIBRARIES = frozenset(
    ("h5py", "lmdb", "zarr", "tables", "pyarrow", "sqlite3", "zipfile", "tarfile", "gzip", "mmap",
     "fsspec", "s3fs", "gcsfs", "smart_open", "boto3", "botocore", "requests", "urllib3", "aiohttp",
     "urllib", "http", "socket", "ssl")
)  # fmt: skip
DECODING_LIBRARIES = frozenset(
    ("simplejpeg", "turbojpeg", "kornia_rs", "imageio", "av", "decord", "torchcodec", "rawpy",
     "pydicom", "tifffile", "soundfile", "zlib", "lz4", "zstandard", "blosc")
)  # fmt: skip
PATH_READS = frozenset(
    ("open", "read_bytes", "read_text", "stat", "exists", "is_file", "iterdir", "glob")
)
BUILTIN_READS = frozenset(
    ("open", "read", "readinto", "readinto1", "read1", "readline", "readlines", "readall", "pread",
     "preadv", "readv", "fromfile", "recv", "recv_into", "stat", "listdir", "scandir", "get_tensor")
)  # fmt: skip
BUILTIN_DECODES = frozenset(
    ("imdecode", "imread", "imdecodemulti", "imreadmulti", "decode", "decode_jpeg", "decode_png",
     "decompress")
)  # fmt: skip
SMALL_LIBRARIES = frozenset(
    ("builtins", "sys", "math", "itertools", "functools", "_functools", "_operator", "_random",
     "_collections", "_codecs", "_sre", "_struct", "_abc", "_thread")
)  # fmt: skip
CONTAINERS = frozenset(
    ("Sequential", "StandardTransform", "OneOf", "SomeOf", "RandomApply", "RandomChoice",
     "RandomOrder")
)  # fmt: skip
OBJECT_METHODS = frozenset(("__call__", "forward", "_call_impl", "_wrapped_call_impl"))
DATASET_METHODS = frozenset(("__getitem__", "__getitems__", "__iter__", "__next__"))
WRAPPERS = frozenset(("wrapper", "wrapped", "inner", "decorate_context"))
CALLS_ANOTHER = WRAPPERS | {"_call_impl", "_wrapped_call_impl"}  # and does nothing else

Totals = dict[tuple[str, str, str, str], list[float]]
"""Wall seconds, CPU seconds of the thread, CPU seconds of the process; by
    kind
    function
    of a read, the transform that it is part of; of a library's, the user's own that reads; else ""
    of the user's own function, the library's that it calls, while that runs; else ""."""

_STDLIB = sysconfig.get_path("stdlib")


def _words(name: str) -> frozenset[str]:
    """Split the name of a function or class: "DecodeJPEG", "decode_jpeg" -> {decode, jpeg}."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
    return frozenset(word.lower() for word in words)


def is_own(file: str) -> bool:
    """Return whether code is the user's own, not a library's."""
    return "-packages" not in file and not file.startswith((_STDLIB, "<frozen"))


def _rule_of(code: CodeType, module: str) -> str:
    """Return the rule for a Python function, from its code alone."""
    name, library = code.co_name, module.partition(".")[0]
    if library in READING_LIBRARIES or (library == "pathlib" and name in PATH_READS):
        return READ
    if library in DECODING_LIBRARIES:
        return DECODE
    if library == "PIL" and _words(name) & {"open", "load", "convert", "draft", "verify"}:
        return READ if "read" in _words(name) else DECODE
    if name in OBJECT_METHODS | DATASET_METHODS:
        return BY_OBJECT
    if name in WRAPPERS:
        return OPEN
    if code.co_filename.startswith(_STDLIB) and "-packages" not in code.co_filename:
        return TRANSFORM  # the decode of codecs, for one, decodes no image
    return _by_words(_words(name), own=is_own(code.co_filename))


def _rule_of_object(subject: object, code: CodeType) -> str:
    """Return the rule for a method with the same name in all classes, such as `__call__`."""
    kind = type(subject)
    if code.co_name in DATASET_METHODS:
        bases = {base.__module__ for base in kind.__mro__}
        is_dataset = "torch.utils.data.dataset" in bases or is_own(code.co_filename)
        return OPEN if is_dataset else TRANSFORM
    if _is_container(subject):
        return OPEN
    return DECODE if _by_words(_words(kind.__name__), own=True) == DECODE else TRANSFORM


def _rule_of_builtin(function: Any) -> str | None:
    """Return the rule for a function written in C; None if too small for a stage, such as len."""
    name, library = function.__name__, _module_of(function).partition(".")[0]
    if library in SMALL_LIBRARIES or type(function.__self__).__name__ in ("BytesIO", "StringIO"):
        return None
    # What comes from these is a file's or the system's; nearly all else in them takes no time.
    if library in {"_io", "io", "posix", "nt", "os"}:
        return READ if name in BUILTIN_READS else None
    if library in READING_LIBRARIES or name in BUILTIN_READS - {"open"}:
        return READ
    return DECODE if name in BUILTIN_DECODES or library in DECODING_LIBRARIES else TRANSFORM


def _takes_bytes(frame: FrameType) -> bool:
    """Return whether the user's own function has a file's bytes as an argument, as decoders do."""
    code = frame.f_code
    names = code.co_varnames[: min(2, code.co_argcount)]  # one of them may be self
    given = [frame.f_locals.get(name) for name in names]
    return is_own(code.co_filename) and any(isinstance(x, (bytes, bytearray)) for x in given)


def _waits(name: str) -> bool:
    """Return whether a function waits, by its name; what waits while reading is reading."""
    return not _words(name).isdisjoint({"sleep", "wait", "acquire", "select", "poll"})


def _is_container(subject: object) -> bool:
    """Return whether an object only calls others one by one, as Compose does."""
    name = type(subject).__name__
    transforms = getattr(subject, "__dict__", {}).get("transforms")
    return "Compose" in name or name in CONTAINERS or isinstance(transforms, list | tuple)


def _first_argument(frame: FrameType) -> object:
    """Return a function's first argument, such as a method's self; None without arguments."""
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def _name_of(frame: FrameType, subject: object) -> str:
    """Return a stage's name for a Python function: "torchvision.Resize", "augment"."""
    code = frame.f_code
    name = code.co_qualname.rpartition("<locals>.")[2]
    if code.co_name in OBJECT_METHODS and subject is not None:
        return _short(type(subject).__module__, type(subject).__name__)
    if code.co_name == "<lambda>":
        name = f"lambda in line {code.co_firstlineno}"
    return _short(frame.f_globals.get("__name__") or "", name)


def _library_call(frames: Sequence[FrameType], builtin: Any) -> str:
    """Return the name of the library's function that the user's own one calls.

    Args:
        frames: from the function's own to the innermost.
        builtin: a function written in C that the innermost calls, or None.

    Returns:
        "" where its own code runs, and where the function itself is a library's.
    """
    calls = [frame for frame in frames if frame.f_code.co_name not in CALLS_ANOTHER]
    if not calls or not is_own(calls[0].f_code.co_filename):
        return ""
    for frame in calls:
        if not is_own(frame.f_code.co_filename):
            return _name_of(frame, _first_argument(frame))
    # Small ones, such as len, are the user's own code.
    if builtin is None or _rule_of_builtin(builtin) is None:
        return ""
    return _name_of_builtin(builtin, frames[-1].f_globals)


def _name_of_builtin(function: Any, names: Mapping[str, Any]) -> str:
    """Return a stage's name for a function written in C: "cv2.flip", "ndarray.astype".

    Args:
        function: some, such as OpenCV's, do not know their module.
        names: the caller's globals, in which that module is then looked for.
    """
    owner, name = function.__self__, function.__name__
    if owner is not None and not isinstance(owner, (type, ModuleType)):
        return f"{type(owner).__name__}.{name}"
    module = _module_of(function)
    if not module:
        modules = [value for value in names.values() if isinstance(value, ModuleType)]
        known = (one.__name__ for one in modules if vars(one).get(name) is function)
        module = next(known, "")
    return _short(module, name)


def _module_of(function: Any) -> str:
    """Return the module of a function written in C, or of the class whose method it is."""
    owner = function.__self__
    if owner is not None and not isinstance(owner, ModuleType):
        kind = owner if isinstance(owner, type) else type(owner)
        return kind.__module__ or ""
    return function.__module__ or getattr(owner, "__name__", "")


def _short(module: str, name: str) -> str:
    package = module.partition(".")[0].lstrip("_")
    return name if package in ("", "main__", "builtins") else f"{package}.{name}"


def _by_words(words: frozenset[str], *, own: bool) -> str:
    if words & DECODE_WORDS or (words & READ_WORDS and words & PICTURE_WORDS):
        return DECODE
    if words & READ_WORDS:
        return READS_OPENLY if own else READ
    return TRANSFORM


# --- samples of the stack ---------------------------------------------------------------------

INTERVAL_S = 1e-4  # a sample costs about a tenth of it
# Rule of the innermost stage -> rules of functions that begin a stage of their own inside it.
_SEEN_INSIDE = {
    OPEN: frozenset((READ, DECODE, TRANSFORM)),
    READS_OPENLY: frozenset((READ, DECODE, TRANSFORM, READS_OPENLY)),
    TRANSFORM: frozenset((READ, DECODE)),
    DECODE: frozenset((READ,)),
    READ: frozenset(),
}
# Rules of a stage, and of one inside it, where both are named.
_BOTH_NAMED = frozenset(((TRANSFORM, READ), (READS_OPENLY, DECODE), (READS_OPENLY, TRANSFORM)))


class Tracer:
    """Adds up the seconds of stages, in one thread.

    Args:
        roots: functions -> what counts of them: OPEN, what they call, as stages; a name, all of
            it, as one stage; None, nothing.
    """

    def __init__(self, roots: Mapping[FunctionType, str | None]) -> None:
        # By id, as a code's hash takes long.
        self._roots = {id(function.__code__): what for function, what in roots.items()}
        self._rules: dict[int, str] = {}
        self._totals: Totals = {}

    def start(self) -> None:
        """Begin to count in this thread."""
        self._mark, self._before = _clocks(), sys.getprofile()
        try:
            from pyinstrument.low_level.stat_profile import setstatprofile
        except ImportError:  # as on GPU machines where nothing can be installed
            sys.setprofile(self._on_any_event)  # it makes calls take longer
        else:
            setstatprofile(self._on_event, INTERVAL_S)

    def stop(self) -> None:
        """End counting, and let go on what the thread was profiled by before."""
        sys.setprofile(self._before)

    def take(self) -> Totals:
        """Return what was counted since the last call."""
        totals, self._totals = self._totals, {}
        return totals

    def _on_any_event(self, frame: FrameType, event: str, arg: object) -> None:
        if time.perf_counter() - self._mark[0] > INTERVAL_S:
            self._on_event(frame, event, arg)

    def _on_event(self, frame: FrameType, event: str, arg: object) -> None:
        now = _clocks()
        # What ends here took the time; what begins here did not.
        running = frame.f_back if event == "call" else frame
        builtin = arg if event in ("c_return", "c_exception") else None
        stage = self._stage_of(running, builtin)
        if stage is not None:
            wall_s, thread_s, process_s = (b - a for a, b in zip(self._mark, now))
            if builtin is time.sleep:
                process_s = thread_s  # other threads computed, and not for this one
            counted = self._totals.setdefault(stage, [0.0, 0.0, 0.0])
            counted[:] = map(add, counted, (wall_s, thread_s, process_s))
        self._mark = _clocks()  # without the time of this sample

    def _stage_of(self, frame: FrameType | None, builtin: Any) -> tuple[str, str, str, str] | None:
        """Return the stage that runs, as a key of `Totals`; None where none does.

        Args:
            frame: the innermost.
            builtin: a function written in C that it called, or None.
        """
        inner, frames = frame, []
        while frame is not None and id(frame.f_code) not in self._roots:
            frames.append(frame)
            frame = frame.f_back
        root = self._roots[id(frame.f_code)] if frame is not None else None
        if root != OPEN:
            return (root, root, "", "") if root else None
        rule, begun, subject, caller, inside = OPEN, None, None, "", 0
        for number, each in reversed(tuple(enumerate(frames))):
            name = each.f_code.co_name
            is_part = name.startswith("<") and name != "<lambda>"  # a comprehension
            if not is_part and (next_rule := self._rule_in(each, rule, begun, subject)):
                caller = _name_of(begun, subject) if (rule, next_rule) in _BOTH_NAMED else ""
                rule, begun, inside = next_rule, each, number
                subject = _first_argument(each)
        if builtin is not None and (last_rule := _rule_of_builtin(builtin)) in _SEEN_INSIDE[rule]:
            waits = READS_OPENLY in _SEEN_INSIDE[rule] and _waits(builtin.__name__)
            kind = READ if waits else last_rule
            caller = _name_of(begun, subject) if (rule, kind) in _BOTH_NAMED else ""
            return kind, _name_of_builtin(builtin, inner.f_globals), caller, ""
        if begun is not None:
            kind = {OPEN: TRANSFORM, READS_OPENLY: READ}.get(rule, rule)
            is_named = rule in (TRANSFORM, DECODE)
            call = _library_call(frames[inside::-1], builtin) if is_named else ""
            return kind, _name_of(begun, subject), caller, call
        # What is no call: a list's or a memory map's lookup.
        own = _first_argument(frame)
        return TRANSFORM, type(getattr(own, "dataset", own)).__name__, "", ""

    def _rule_in(
        self, frame: FrameType, outer: str, begun: FrameType | None, subject: object
    ) -> str | None:
        """Return the rule of a function that begins a stage inside another; None if it does not."""
        code, allowed = frame.f_code, _SEEN_INSIDE[outer]
        if not allowed:
            return None
        if id(code) not in self._rules:
            self._rules[id(code)] = _rule_of(code, frame.f_globals.get("__name__") or "")
        rule = self._rules[id(code)]
        if TRANSFORM not in allowed:
            return rule if rule in allowed else None
        own = _first_argument(frame)
        is_same = own is not None and own is subject
        if begun is None:  # what the data set itself does
            return OPEN
        if rule == BY_OBJECT:
            return OPEN if is_same else _rule_of_object(own, code)
        if rule == TRANSFORM and READS_OPENLY in allowed and _waits(code.co_name):
            return READ
        if rule == TRANSFORM and is_same:
            return OPEN  # a method of the data set's own
        if rule == TRANSFORM and _takes_bytes(frame):
            rule = self._rules[id(code)] = DECODE  # also after its argument was replaced
        return rule


def _clocks() -> tuple[float, float, float]:
    """Return wall seconds, CPU seconds of this thread, CPU seconds of the process."""
    return time.perf_counter(), time.thread_time(), time.process_time()
