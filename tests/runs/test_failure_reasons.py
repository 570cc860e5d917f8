"""Errors of memory that is used up, as one line with what to do."""

import pytest
import torch
from small import completed

from labkit.runs.failure_reasons import is_out_of_gpu_memory, out_of_memory
from labkit.settings import Settings


def test_the_reason_names_what_ran_out_and_what_helps(photos):
    error = RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
    settings = completed(data=str(photos), batch_size=8, preprocessor="classification")
    reason = out_of_memory(error, settings)
    words = "batch_size must leave room in the GPU's memory, got 8 (393 KB a batch)"
    assert reason.startswith(words)
    assert "workers" not in reason  # fewer are of no use there
    # Of an operation alone no batch is to blame.
    assert out_of_memory(MemoryError("Unable to allocate 1 TiB"), Settings()) == ""


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("CUDA out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublas"), True),
        (RuntimeError("Unable to find a valid cuDNN algorithm to run convolution"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 1 TB"), False),
        (MemoryError("Unable to allocate 1 TiB"), False),
    ],
    ids=str,
)
def test_the_gpus_memory_is_told_from_the_hosts_and_from_other_errors(error, is_memory):
    assert is_out_of_gpu_memory(error) is is_memory
