"""Why a job failed, in one line: an error's first line, or that a batch took all memory."""

from __future__ import annotations

import re

from labkit import units
from labkit.batches import BATCHES, bytes_of
from labkit.contracts import LONGEST_REASON
from labkit.parts.preprocessing import Preprocessor
from labkit.resolve import find_part
from labkit.settings import Settings

# NumPy's, Python's and C++'s own; torch's on the CPU and on CUDA; OpenCV's; TensorFlow's; cuBLAS's
# and cuDNN's, which in a batch that fitted before say that no memory for their workspace is left.
OUT_OF_MEMORY = re.compile(
    r"MemoryError|bad_alloc|ALLOC_FAILED|can(no|')t allocate|out ?of ?memory|OOM when allocating"
    r"|CUBLAS_STATUS_NOT_INITIALIZED|unable to find a valid cuDNN algorithm",
    re.IGNORECASE,
)
GPU_LIBRARIES = re.compile(r"CUDA|CUBLAS|CUDNN", re.IGNORECASE)


def one_line(error: BaseException) -> str:
    """Return an error's type and first line; of a loader worker's traceback, the last line."""
    lines = str(error).strip().splitlines() or [""]
    if lines[0].startswith("Caught "):
        return lines[-1]
    return f"{type(error).__name__}: {lines[0]}"


def is_out_of_gpu_memory(error: BaseException) -> bool:
    """Return whether an error of torch, cuBLAS or cuDNN says that the GPU's memory is used up."""
    message = one_line(error)
    return bool(OUT_OF_MEMORY.search(message) and GPU_LIBRARIES.search(message))


def out_of_memory(error: BaseException, settings: Settings) -> str:
    """Return in one line that a batch took all memory; '' where something else went wrong."""
    message = one_line(error)
    if settings.batch_size is None or not OUT_OF_MEMORY.search(message):  # operations have none
        return ""
    where, advice = "memory", "smaller batch_size, a smaller input_px or fewer workers"
    if GPU_LIBRARIES.search(message):
        where, advice = "the GPU's memory", "smaller batch_size or a smaller input_px"
    return (
        f"batch_size must leave room in {where}, got {settings.batch_size} "
        f"({units.count_bytes(batch_bytes(settings))} a batch); use a {advice} "
        f"({message[:LONGEST_REASON]})"
    )


def batch_bytes(settings: Settings) -> int:
    """Return the size of a finished batch."""
    describe = BATCHES[find_part(Preprocessor, settings.preprocessor).batch]
    return bytes_of(describe(settings.batch_size, settings.input_px))
