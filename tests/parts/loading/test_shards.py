"""Shards are read in order, one worker each; the buffer mixes them, and one number says how well.

Run: python -m pytest tests/parts/loading/test_shards.py
"""

from dataclasses import replace

import pytest
from jpegs import encode, photo
from small import completed

from labkit import units
from labkit.parts.loading.shards import BUFFER_IMAGES, describe_order, mixing, read_order
from labkit.pipeline import open_loader
from labkit.resolve import resolve
from labkit.runs.packs import ensure_pack

IMAGES, BATCH_SIZE, SHARD = 320, 8, 64


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """So many small photos that their pack has five shards."""
    folder = tmp_path_factory.mktemp("shards") / "photos"
    folder.mkdir()
    jpeg = encode(photo())
    for number in range(IMAGES):
        (folder / f"{number:03}.jpg").write_bytes(jpeg)
    ensure_pack(completed(data=str(folder), packing="tar"), jobs=1)
    return folder


def opened(data, **changes):
    how = {
        "packing": "tar", "loader": "shards", "batch_size": BATCH_SIZE, "device": "simulated",
        "preprocessor": "classification", "subset": "first", "num_workers": 0,
    }  # fmt: skip
    settings = completed(data=str(data), **{**how, **changes})
    return (*open_loader(resolve(settings)), settings)


def ids(batches):
    return [[int(i) for i in batch["sample_id"]] for batch in batches]


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more than cores
def test_an_epoch_has_each_image_once_and_another_order_than_the_last(data, workers):
    source, loader, _ = opened(data, num_workers=workers, persistent_workers=workers > 0)
    epochs = []
    for source.order.epoch in range(2):
        epochs.append(ids(loader))
        assert sorted(i for batch in epochs[-1] for i in batch) == list(range(IMAGES))
    assert epochs[0] != epochs[1]
    _, loader, _ = opened(data, num_workers=workers)
    assert ids(loader) == epochs[0]


def test_in_stored_order_workers_read_on_where_the_others_end(data):
    _, loader, _ = opened(data, shuffle=False)
    assert [i for batch in ids(loader) for i in batch] == list(range(IMAGES))
    _, loader, _ = opened(data, shuffle=False, num_workers=2)
    batches = ids(loader)
    first, second = ([i for batch in batches[number::2] for i in batch] for number in range(2))
    assert first + second == list(range(IMAGES))


def test_each_shard_is_read_from_its_beginning_to_its_end(data, monkeypatch):
    source, loader, settings = opened(data)
    read, plain = [], source.reader.read

    def recording(i):
        read.append(i)
        return plain(i)

    monkeypatch.setattr(source.reader, "read", recording)
    list(loader)
    shards = [read[start : start + SHARD] for start in range(0, IMAGES, SHARD)]
    assert all(shard == list(range(shard[0], shard[0] + SHARD)) for shard in shards)
    assert [shard[0] for shard in shards] != list(range(0, IMAGES, SHARD))
    assert [i for _, i in read_order(list(source.order), source, settings)] == read


def test_mixing_is_one_for_a_full_shuffle_and_nearly_nothing_in_stored_order(data):
    source, loader, settings = opened(data)
    keys = list(source.order)
    in_order = mixing(keys, source, replace(settings, shuffle=False))
    buffered = mixing(keys, source, settings)
    files, _, every_image = opened(data, packing="folder")  # a shard each, so a full shuffle
    full = mixing(list(files.order), files, every_image)
    assert in_order == pytest.approx((BATCH_SIZE + 1) / (IMAGES + 1))
    assert in_order < 0.03 < 0.3 < buffered < full
    assert full == pytest.approx(1, abs=0.05)
    # What the loader delivers is what was computed.
    apart = [abs(a - b) for batch in ids(loader) for a in batch for b in batch]
    pairs = IMAGES * (BATCH_SIZE - 1)
    assert sum(apart) / pairs / ((IMAGES + 1) / 3) == pytest.approx(buffered)


def test_a_row_says_how_it_was_read_and_mixed(data):
    source, _, settings = opened(data)
    said = describe_order(source, settings)
    assert said.startswith(f"shard after shard, a buffer of {BUFFER_IMAGES} images in each worker")
    mixed = mixing(list(source.order), source, settings)
    assert said.endswith(f"batches are mixed to {units.whole_percent(mixed)} of a full shuffle")
    plain = describe_order(source, replace(settings, shuffle=False))
    assert plain == "shard after shard, as stored"
