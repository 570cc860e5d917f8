"""A kept list of unreadable images counts only where all that it depends on is the same."""

import pytest

from labkit.records import UNKNOWN
from labkit.runs.check_images import check_images
from labkit.runs.kept_checks import FILE
from tests.runs.test_check_simulated import Asked

BAD = ([(3, "3.jpg: image must be a JPEG file")], [])  # no file has changed


def decoded(results, *, base=(), **changes):
    """Check the images of a run; return which of them it decodes, None: all."""
    run = Asked(results, [BAD], base={"on_bad_image": "skip", **dict(base)}, **changes)
    check_images(run)
    assert run.info.excluded == (3,)
    return run.arguments["suspects"]


@pytest.mark.parametrize(
    "changes",
    [
        {"provenance": {"machine_id": "another"}},
        {"provenance": {"python": "3.14"}},
        {"provenance": {"versions": {"cv2": "5.0"}}},
        {"data_hash": "other"},
        {"base": {"seed": 1}},
        {"base": {"subset": "first"}},
        {"decoder": "pillow"},
    ],
    ids=str,
)
def test_images_are_decoded_again_where_others_may_be_unreadable(tmp_path, changes):
    assert decoded(tmp_path) is None
    assert decoded(tmp_path) == [3]
    assert decoded(tmp_path, **changes) is None


def test_nothing_is_kept_of_data_without_a_manifest(tmp_path):
    for _ in range(2):  # an image may be another one now
        assert decoded(tmp_path, data_hash=UNKNOWN) is None
    assert not (tmp_path / FILE).exists()
