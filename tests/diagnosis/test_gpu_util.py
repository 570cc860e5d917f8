"""What a meter reads of busy bands, and that GPU-Util is shown or skipped with a reason.

Run: python -m pytest tests/diagnosis/test_gpu_util.py
"""

import pytest

from labkit.diagnosis import gpu_util as module
from labkit.diagnosis.gpu_util import gpu_util, polled_table
from labkit.machine import gpu
from labkit.machine.gpu import CudaState

# Ten seconds, in each of which the device waits for 0.2 s.
STALLS = [(i + 0.2, i + 1.0) for i in range(10)]


def test_the_table_has_a_row_for_each_period_and_no_reading_where_there_is_none():
    table = polled_table(STALLS, 10.0, periods_s=(0.1, 1.0, 60.0))
    assert list(table.index) == ["100 ms", "1.00 s", "1 min 0 s"]
    assert list(table.loc["100 ms"]) == ["100", "0.0 %", "100.0 %", "20.0 %"]
    assert list(table.loc["1.00 s"]) == ["10", "80.0 %", "80.0 %", "0.0 %"]
    assert list(table.loc["1 min 0 s"]) == ["0", "–", "–", "–"]


def test_without_a_gpu_it_is_skipped_with_its_reason(monkeypatch):
    state = CudaState(works=False, reason="no NVIDIA driver")
    monkeypatch.setattr(module, "cuda", lambda: state)
    shown = gpu_util()
    assert list(shown.index) == ["one thread spinning", "matrix products"]
    assert set(shown["GPU-Util (NVML)"]) == {"skipped"}
    assert set(shown["achieved"]) == {"no NVIDIA driver"}
    assert "GPU-Util" in shown._repr_html_()


@pytest.mark.needs_cuda
def test_a_kernel_of_one_thread_reads_as_busy_as_the_whole_gpu():
    assert gpu.cuda().works
    shown = gpu_util(seconds=1.5)
    percents = [float(text.removesuffix(" %")) for text in shown["GPU-Util (NVML)"]]
    assert min(percents) > 90
    assert shown.loc["one thread spinning", "achieved"] == "nothing computed"
    assert float(shown.loc["matrix products", "achieved"].split()[0]) > 0.1
