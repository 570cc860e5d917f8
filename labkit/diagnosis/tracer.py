"""What making a sample takes, stage by stage, by Python's profile hook.

    call(dataset[key]) ── every call and return ──▶ rules ──▶ read 1.2 ms, decode 5.0 ms,
                                                              torchvision.Resize 0.9 ms, …

    builtin open, FileIO.read, h5py, zipfile …     read
    cv2.imdecode, simplejpeg, PIL's load …         decode, as the user's own functions of bytes
    Compose, Subset, a data set's own methods      containers: what they call are stages
    everything else that these call                a stage of its own name

Seconds count for the innermost stage: a read inside a decoder is reading.  A sampling profiler
would not do: pyinstrument acts on calls and returns only, so it misses a read of half an interval
before a long decode.  The hook costs about half a microsecond per call; that is measured
(`event_cost`) and subtracted.

Names are hints.  The user's `read_sample` may decode and resize, too, so it counts as a container;
only what is named after decoding is taken at its word.  Functions of a C extension made with
Cython are not reported to the hook and count for their caller.  Python 3.11 runs loops without
calls 1.1 to 1.6 times as long under a hook, so seconds in C are counted apart, for `stages` to
correct the others.
"""

from __future__ import annotations

import re
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from types import CodeType, FrameType, ModuleType
from typing import NamedTuple

READ, DECODE, TRANSFORM = "read", "decode", "transform"

# Rules for functions, whatever calls them.
READS = "reads"
DECODES = "decodes"
READS_OPENLY = "reads openly"  # the user's own: what it calls are stages, but not what waits
OPEN = "container"
BY_OBJECT = "by its object"  # __call__ and the like: a container, or a transform?
STEP = "a stage of its own"
PART = "part of its caller"  # a comprehension

READ_WORDS = frozenset(("read", "load", "open", "fetch", "download", "pread", "recv"))
DECODE_WORDS = frozenset(("decode", "decoder", "imdecode", "imread", "decompress", "loader"))
PICTURE_WORDS = frozenset(
    ("image", "images", "img", "jpeg", "jpg", "png", "pil", "picture", "photo", "frame", "frames",
     "video", "audio", "wav")
)  # fmt: skip
WAIT_WORDS = frozenset(("sleep", "wait", "acquire", "select", "poll"))
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
PILLOW_DECODE_WORDS = frozenset(("open", "load", "convert", "draft", "verify", "frombytes"))
BUILTIN_READS = frozenset(
    ("open", "read", "readinto", "readinto1", "read1", "readline", "readlines", "readall", "pread",
     "preadv", "readv", "fromfile", "recv", "recv_into", "stat", "listdir", "scandir", "get_tensor")
)  # fmt: skip
BUILTIN_DECODES = frozenset(
    ("imdecode", "imread", "imdecodemulti", "imreadmulti", "decode", "decode_jpeg", "decode_png",
     "decompress")
)  # fmt: skip
# What comes from these is a file's or the system's; nearly all else in them takes no time.
SYSTEM_LIBRARIES = frozenset(("_io", "io", "posix", "nt", "os"))
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

_STDLIB = sysconfig.get_path("stdlib")


def _words(name: str) -> frozenset[str]:
    """Split the name of a function or class: "DecodeJPEG", "decode_jpeg" -> {decode, jpeg}."""
    found = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
    return frozenset(word.lower() for word in found)


def _is_own(file: str) -> bool:
    """Return whether code is the user's own, not a library's."""
    return "-packages" not in file and not file.startswith((_STDLIB, "<frozen"))


def _rule_of(code: CodeType, module: str) -> str:
    """Return the rule for a Python function, from its code alone."""
    name, library = code.co_name, module.partition(".")[0]
    if library in READING_LIBRARIES or (library == "pathlib" and name in PATH_READS):
        return READS
    if library in DECODING_LIBRARIES:
        return DECODES
    if library == "PIL" and _words(name) & PILLOW_DECODE_WORDS:
        return READS if "read" in _words(name) else DECODES
    if name in OBJECT_METHODS | DATASET_METHODS:
        return BY_OBJECT
    if name.startswith("<") and name != "<lambda>":
        return PART
    if name in WRAPPERS:
        return OPEN
    if code.co_filename.startswith(_STDLIB) and "-packages" not in code.co_filename:
        return STEP  # the decode of codecs, for one, decodes no image
    return _by_words(_words(name), own=_is_own(code.co_filename))


def _rule_of_object(subject: object, code: CodeType) -> str:
    """Return the rule for a method with the same name in all classes, such as `__call__`."""
    kind = type(subject)
    if code.co_name in DATASET_METHODS:
        bases = {base.__module__ for base in kind.__mro__}
        is_dataset = "torch.utils.data.dataset" in bases or _is_own(code.co_filename)
        return OPEN if is_dataset else STEP
    if _is_container(subject):
        return OPEN
    return DECODES if _by_words(_words(kind.__name__), own=True) == DECODES else STEP


def _rule_of_builtin(function: object) -> str | None:
    """Return the rule for a function written in C; None if too small for a stage, such as len."""
    name, library = function.__name__, _module_of(function).partition(".")[0]
    if library in SMALL_LIBRARIES or type(function.__self__).__name__ in ("BytesIO", "StringIO"):
        return None
    if library in SYSTEM_LIBRARIES:
        return READS if name in BUILTIN_READS else None
    if library in READING_LIBRARIES or name in BUILTIN_READS - {"open"}:
        return READS
    return DECODES if name in BUILTIN_DECODES or library in DECODING_LIBRARIES else STEP


def _takes_bytes(frame: FrameType) -> bool:
    """Return whether the user's own function has a file's bytes as an argument, as decoders do."""
    code = frame.f_code
    names = code.co_varnames[: min(2, code.co_argcount)]  # one of them may be self
    given = [frame.f_locals.get(name) for name in names]
    return _is_own(code.co_filename) and any(isinstance(x, (bytes, bytearray)) for x in given)


def _waits(name: str) -> bool:
    """Return whether a function waits, by its name; what waits while reading is reading."""
    return not _words(name).isdisjoint(WAIT_WORDS)


def _is_container(subject: object) -> bool:
    """Return whether an object only calls others one by one, as Compose does."""
    name = type(subject).__name__
    if "Compose" in name or name in CONTAINERS:
        return True
    try:
        return isinstance(getattr(subject, "transforms", None), (list, tuple))
    except Exception:  # the user's own __getattr__
        return False


def _first_argument(frame: FrameType) -> object:
    """Return a function's first argument, such as a method's self; None without arguments."""
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def _name_of(frame: FrameType, subject: object) -> str:
    """Return a stage's name for a Python function: "torchvision.Resize", "augment"."""
    code = frame.f_code
    name = getattr(code, "co_qualname", code.co_name).rpartition("<locals>.")[2]
    if code.co_name in OBJECT_METHODS and subject is not None:
        return _short(type(subject).__module__, type(subject).__name__)
    if code.co_name == "<lambda>":
        name = f"lambda in line {code.co_firstlineno}"
    return _short(frame.f_globals.get("__name__") or "", name)


def _name_of_builtin(function: object, names: Mapping[str, object]) -> str:
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


def _module_of(function: object) -> str:
    """Return the module of a function written in C, or of the class whose method it is."""
    owner = function.__self__
    if owner is not None and not isinstance(owner, ModuleType):
        kind = owner if isinstance(owner, type) else type(owner)
        return kind.__module__ or ""
    return function.__module__ or getattr(owner, "__name__", "")


def _short(module: str, name: str) -> str:
    package = module.partition(".")[0].lstrip("_")
    return name if package in ("", "main__", "builtins") else f"{package}.{name}"


def _by_words(found: frozenset[str], *, own: bool) -> str:
    if found & DECODE_WORDS or (found & READ_WORDS and found & PICTURE_WORDS):
        return DECODES
    if found & READ_WORDS:
        return READS_OPENLY if own else READS
    return STEP


# --- the hook ---------------------------------------------------------------------------------

# Rule of the innermost stage -> rules of functions that begin a stage of their own inside it.
_SEEN_INSIDE = {
    OPEN: frozenset((READS, DECODES, STEP)),
    READS_OPENLY: frozenset((READS, DECODES, STEP, READS_OPENLY)),
    STEP: frozenset((READS, DECODES)),
    DECODES: frozenset((READS,)),
    READS: frozenset(),
}
_KINDS = {READS: READ, READS_OPENLY: READ, DECODES: DECODE}
_CALIBRATION_CALLS, _CALIBRATION_TRIES = 300, 7


class Counted(NamedTuple):
    """What a stage took."""

    wall_s: float
    cpu_s: float
    """Of the process, with all its threads."""
    thread_cpu_s: float
    c_s: float
    """The part of `thread_cpu_s` in functions written in C."""
    events: int
    """Calls and returns reported to the hook."""


Totals = dict[tuple[str, str], Counted]
"""By kind and name."""


def clocks() -> tuple[float, float, float]:
    """Return wall seconds, CPU seconds of the process, CPU seconds of this thread."""
    return time.perf_counter(), time.process_time(), time.thread_time()


class Tracer:
    """Adds up the seconds of stages over calls, in one thread."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, str], list] = {}
        # (frame, begun by a C function?, totals, what begins a stage inside, first argument)
        self._stack: list[tuple] = []
        self._in_c: tuple[FrameType, float] | None = None  # who called it, and when
        self._rules: dict[int, tuple] = {}  # by the code's id, which is its own while it is kept

    def call(self, function: Callable, *args: object) -> object:
        """Call a function, such as `next` with an iterator, and count its stages."""
        before = sys.getprofile()
        own = type(args[0]).__name__  # for what is no call: a list's or a memory map's lookup
        self._stack = [self._entry(None, False, TRANSFORM, own, OPEN, None)]
        self._mark = clocks()
        sys.setprofile(self._on_event)
        try:
            return function(*args)
        finally:
            sys.setprofile(before)
            self._charge()
            self._stack, self._in_c = [], None

    def take(self) -> Totals:
        """Return what was counted since the last call."""
        totals, self._totals = self._totals, {}
        return {key: Counted(*counted) for key, counted in totals.items()}

    def _on_event(self, frame: FrameType, event: str, arg: object) -> None:
        top = self._stack[-1]
        top[2][4] += 1
        if event == "call":
            entry = self._enter(frame, top)
        elif event == "c_call":
            entry = self._enter_builtin(frame, arg, top)
            if entry is None and self._in_c is None:
                self._in_c = frame, time.thread_time()
        else:
            if top[0] is frame and top[1] == (event != "return"):
                self._charge()
                self._stack.pop()
            elif self._in_c is not None and self._in_c[0] is frame and event != "return":
                top[2][3] += time.thread_time() - self._in_c[1]
                self._in_c = None
            return
        if entry is not None:
            self._charge()
            self._stack.append(entry)

    def _charge(self) -> None:
        now, (_, in_c, counted, *_) = clocks(), self._stack[-1]
        for i in range(3):
            counted[i] += now[i] - self._mark[i]
        counted[3] += now[2] - self._mark[2] if in_c else 0.0
        self._mark = now

    def _enter(self, frame: FrameType, top: tuple) -> tuple | None:
        if not top[3]:
            return None
        code = frame.f_code
        known = self._rules.get(id(code))
        if known is None:
            module = frame.f_globals.get("__name__") or ""
            known = self._rules[id(code)] = (code, _rule_of(code, module))
        rule = known[1]
        if STEP not in top[3] or rule == PART:
            if rule not in top[3]:
                return None
            return self._entry(frame, False, _KINDS[rule], _name_of(frame, None), rule, None)
        subject = _first_argument(frame)
        if len(self._stack) == 1:  # what the data set itself does
            rule = OPEN
        elif rule == BY_OBJECT:
            same = subject is not None and subject is top[4]
            rule = OPEN if same else _rule_of_object(subject, code)
        elif rule == STEP and READS_OPENLY in top[3] and _waits(code.co_name):
            rule = READS
        elif rule == STEP and subject is not None and subject is top[4]:
            rule = OPEN  # a method of the data set's own
        elif rule == STEP and _takes_bytes(frame):
            rule = DECODES
        kind = _KINDS.get(rule, TRANSFORM)
        return self._entry(frame, False, kind, _name_of(frame, subject), rule, subject)

    def _enter_builtin(self, frame: FrameType, function: object, top: tuple) -> tuple | None:
        if not top[3]:
            return None
        rule = _rule_of_builtin(function)
        if rule not in top[3]:
            return None
        if READS_OPENLY in top[3] and _waits(function.__name__):
            rule = READS
        kind = _KINDS.get(rule, TRANSFORM)
        name = _name_of_builtin(function, frame.f_globals)
        return self._entry(frame, True, kind, name, rule, None)

    def _entry(
        self, frame: FrameType | None, is_builtin: bool, kind: str, name: str, rule: str,
        subject: object,
    ) -> tuple:  # fmt: skip
        counted = self._totals.setdefault((kind, name), [0.0, 0.0, 0.0, 0.0, 0])
        return frame, is_builtin, counted, _SEEN_INSIDE[rule], subject


def event_cost() -> float:
    """Return the hook's CPU seconds for a call or return that begins no stage, about."""

    def nothing(a: int = 0, b: int = 1) -> None:
        pass

    def work() -> None:
        for _ in range(_CALIBRATION_CALLS):
            nothing()

    plain, traced = [], []
    for _ in range(_CALIBRATION_TRIES):
        started_s = time.thread_time()
        work()
        plain.append(time.thread_time() - started_s)
        tracer = Tracer()
        tracer.call(_inside_a_stage, work)
        traced.append(tracer.take().values())
    # The least of several: a busy machine makes the hook look expensive.
    spent_s = min(sum(one.thread_cpu_s for one in counted) for counted in traced)
    return max(0.0, spent_s - min(plain)) / sum(one.events for one in traced[0])


def _inside_a_stage(work: Callable[[], None]) -> None:
    work()
