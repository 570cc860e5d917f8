"""What torch's prefetch_factor counts: batches of each worker, not samples.

[001] 1.5 says samples; the footnote of claim 14 says what is counted here.
"""

import pytest
import torch

from tests.processes import PATIENCE_S

BATCH_SIZE = 8


class Reported(torch.utils.data.Dataset):
    """Samples that are nothing; every one that is taken is reported to a queue."""

    def __init__(self, taken):
        self._taken = taken

    def __len__(self):
        return 10_000

    def __getitem__(self, i):
        self._taken.put(torch.utils.data.get_worker_info().id)
        return i


@pytest.mark.parametrize(("workers", "factor"), [(1, 4), (2, 3), (2, None)])
def test_each_worker_takes_so_many_batches_before_the_first_one_is_asked_for(workers, factor):
    context = torch.multiprocessing.get_context("fork")
    taken = context.Queue()
    loader = torch.utils.data.DataLoader(
        Reported(taken), batch_size=BATCH_SIZE, num_workers=workers, prefetch_factor=factor,
        multiprocessing_context=context,
    )  # fmt: skip
    batches = iter(loader)
    expected = workers * (factor or 2) * BATCH_SIZE
    ids = [taken.get(timeout=PATIENCE_S) for _ in range(expected)]
    assert all(ids.count(worker) == expected // workers for worker in range(workers))
    # Nothing more is taken until a batch is asked for; then it is one batch more.
    assert taken.empty()
    next(batches)
    assert len([taken.get(timeout=PATIENCE_S) for _ in range(BATCH_SIZE)]) == BATCH_SIZE
