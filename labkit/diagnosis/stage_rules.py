"""Which stage of preparing a sample a function belongs to, told by its name and its library.

    builtin open, FileIO.read, h5py, zipfile …     read
    cv2.imdecode, simplejpeg, PIL's load …         decode, as what a person's own do with bytes
    Compose, Subset, a data set's own methods      looked through: what they call are stages
    everything else that these call                a stage of its own name

Main trap: names are hints.  A person's `read_sample` may decode and resize as well, so it is
looked through; only what is named after decoding is taken at its word, whatever it calls.
"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterable, Mapping
from types import CodeType, FrameType, ModuleType

READ, DECODE, TRANSFORM = "read", "decode", "transform"

# What is known of a function, whoever calls it.
READS = "reads"
DECODES = "decodes"
READS_OPENLY = "reads openly"  # a person's own: what it calls are stages, but not what waits
OPEN = "looked through"
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


def words(name: str) -> frozenset[str]:
    """Split a function's or a class's name: "DecodeJPEG", "decode_jpeg" -> {decode, jpeg}."""
    found = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
    return frozenset(word.lower() for word in found)


def is_own(file: str) -> bool:
    """Say whether code is a person's own, and of no library."""
    return "-packages" not in file and not file.startswith((_STDLIB, "<frozen"))


def rule_of(code: CodeType, module: str) -> str:
    """Say what a Python function does, as far as its code alone tells.

    Args:
        code: of the function.
        module: where it is defined.
    """
    name, library = code.co_name, module.partition(".")[0]
    if library in READING_LIBRARIES or (library == "pathlib" and name in PATH_READS):
        return READS
    if library in DECODING_LIBRARIES:
        return DECODES
    if library == "PIL" and words(name) & PILLOW_DECODE_WORDS:
        return READS if "read" in words(name) else DECODES
    if name in OBJECT_METHODS | DATASET_METHODS:
        return BY_OBJECT
    if name.startswith("<") and name != "<lambda>":
        return PART
    if name in WRAPPERS:
        return OPEN
    if code.co_filename.startswith(_STDLIB) and "-packages" not in code.co_filename:
        return STEP  # the decode of codecs, for one, decodes no image
    return _by_words(words(name), own=is_own(code.co_filename))


def rule_of_object(subject: object, code: CodeType) -> str:
    """Say what a method does that is called alike in all classes: `__call__`, `__getitem__`."""
    kind = type(subject)
    if code.co_name in DATASET_METHODS:
        bases = {base.__module__ for base in kind.__mro__}
        is_dataset = "torch.utils.data.dataset" in bases or is_own(code.co_filename)
        return OPEN if is_dataset else STEP
    if is_container(subject):
        return OPEN
    return DECODES if _by_words(words(kind.__name__), own=True) == DECODES else STEP


def rule_of_builtin(function: object) -> str | None:
    """Say what a function written in C does; None: too small to be a stage, such as len."""
    name, library = function.__name__, _module_of(function).partition(".")[0]
    if library in SMALL_LIBRARIES or type(function.__self__).__name__ in ("BytesIO", "StringIO"):
        return None
    if library in SYSTEM_LIBRARIES:
        return READS if name in BUILTIN_READS else None
    if library in READING_LIBRARIES or name in BUILTIN_READS - {"open"}:
        return READS
    return DECODES if name in BUILTIN_DECODES or library in DECODING_LIBRARIES else STEP


def takes_bytes(frame: FrameType) -> bool:
    """Say whether a person's own function makes something of a file's bytes, as decoders do."""
    code = frame.f_code
    names = code.co_varnames[: min(2, code.co_argcount)]  # one of them may be self
    given = [frame.f_locals.get(name) for name in names]
    return is_own(code.co_filename) and any(isinstance(x, (bytes, bytearray)) for x in given)


def waits(name: str) -> bool:
    """Say whether a function waits by its name; what waits while reading is reading."""
    return not words(name).isdisjoint(WAIT_WORDS)


def is_container(subject: object) -> bool:
    """Say whether an object only calls others one by one, as Compose does."""
    name = type(subject).__name__
    if "Compose" in name or name in CONTAINERS:
        return True
    try:
        return isinstance(getattr(subject, "transforms", None), (list, tuple))
    except Exception:  # a person's own __getattr__
        return False


def first_argument(frame: FrameType) -> object:
    """Give what a function was called with first: a method's self; None without arguments."""
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def name_of(frame: FrameType, subject: object) -> str:
    """Name a stage after a Python function: "cv2.resize", "torchvision.Resize", "augment"."""
    code = frame.f_code
    name = getattr(code, "co_qualname", code.co_name).rpartition("<locals>.")[2]
    if code.co_name in OBJECT_METHODS and subject is not None:
        return _short(type(subject).__module__, type(subject).__name__)
    if code.co_name == "<lambda>":
        name = f"lambda in line {code.co_firstlineno}"
    return _short(frame.f_globals.get("__name__") or "", name)


def name_of_builtin(function: object, names: Mapping[str, object]) -> str:
    """Name a stage after a function written in C: "cv2.flip", "ndarray.astype".

    Args:
        function: some, as those of OpenCV, do not know their module.
        names: the globals of who calls it, in which that module is then looked for.
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
    """Find where a function written in C is from: its module, or that of the object it is of."""
    owner = function.__self__
    if owner is not None and not isinstance(owner, ModuleType):
        kind = owner if isinstance(owner, type) else type(owner)
        return kind.__module__ or ""
    return function.__module__ or getattr(owner, "__name__", "")


def _short(module: str, name: str) -> str:
    package = module.partition(".")[0].lstrip("_")
    return name if package in ("", "main__", "builtins") else f"{package}.{name}"


def _by_words(found: Iterable[str], *, own: bool) -> str:
    found = frozenset(found)
    if found & DECODE_WORDS or (found & READ_WORDS and found & PICTURE_WORDS):
        return DECODES
    if found & READ_WORDS:
        return READS_OPENLY if own else READS
    return STEP
