"""The GPU question: really asked of this machine; the wording checked on answers torch gives."""

import subprocess
import sys

import pytest

from labkit.machine.gpu import explain_cuda

GTX = {
    "torch": "2.13.0",
    "cuda": "13.0",
    "name": "NVIDIA GeForce GTX 1080 Ti",
    "capability": "6.1",
    "kernels": ["sm_75", "sm_90a", "compute_120"],
    "error": "CUDA error: no kernel image is available for execution on the device\nmore",
}


def test_asking_neither_imports_torch_here_nor_stops_a_later_fork():
    asks = (
        "import sys; from labkit.machine import gpu; gpu.cuda(); "
        "print('torch' in sys.modules, 'pandas' in sys.modules, 'cv2' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "False"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            {},
            "NVIDIA GeForce GTX 1080 Ti has compute capability 6.1, but torch 2.13.0 has kernels "
            "for sm_75, sm_90a, compute_120 only; install a torch build with kernels for it",
        ),
        ({"error": ""}, ""),
        ({"error": "No CUDA GPUs are available\nmore"}, "No CUDA GPUs are available"),
    ],
)
def test_what_keeps_cuda_from_working_is_one_line(answer, reason):
    assert explain_cuda({**GTX, **answer}) == reason
