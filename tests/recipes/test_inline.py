"""A program that imports labkit becomes one that does not.

Run: python -m pytest tests/test_inline.py
"""

import re

import pytest

from labkit.recipes.inline import inline

PROGRAM = """
import numpy as np
from labkit.parts.preprocessing.vectorized import gaussian, gaussian_radii

SIZES = [[4, 6]]


def main():
    return gaussian(int(gaussian_radii(np.array(SIZES))[0]))
"""


def run(text):
    space = {}
    exec(text, space)
    return space


def test_what_is_taken_does_the_same_without_labkit():
    from labkit.parts.preprocessing.vectorized import gaussian

    text = inline(PROGRAM)
    assert "labkit" not in text
    assert (run(text)["main"]() == gaussian(1)).all()


def test_constants_come_first_and_nothing_that_is_not_needed_comes_along():
    text = inline(PROGRAM)
    order = ["import cache", "import numpy as np", "SIZES =", "MIN_OVERLAP = 0.7", "def gaussian_r"]
    places = [text.index(words) for words in [*order, "def main"]]
    assert places == sorted(places)
    for unneeded in ("import cv2", "class Draws", "def warp", "import json"):
        assert unneeded not in text


def test_docstrings_keep_their_first_line():
    text = inline(PROGRAM)
    assert '    """Find the radius of every box\'s Gaussian."""\n    width, height' in text
    assert "Returns:" not in text


def test_imports_inside_functions_move_to_the_top():
    text = inline("from labkit.parts.preprocessing.vectorized import warp\n\nwarp\n")
    assert text.index("import cv2") < text.index("def warp")
    assert "    import cv2" not in text


def test_a_definition_can_be_replaced():
    program = (
        "from labkit.parts.preprocessing.draws import config\n\n\ndef f():\n    return config()\n"
    )
    replaced = {"read_config": 'def read_config():\n    return "mine"'}
    assert run(inline(program, replaced))["f"]() == "mine"


def test_a_name_that_is_not_there_is_refused():
    message = "nothing must be defined at the top of labkit.units, got no such name"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        inline("from labkit.units import nothing\n")


def test_a_name_that_is_two_things_is_refused():
    # Both modules have a function of that name.
    program = "from labkit.units import count\nfrom labkit.counted import count\n"
    message = "count must be one thing, got labkit.units and labkit.counted"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        inline(program)


def test_an_import_that_may_fail_stays_where_it_is_caught():
    text = inline("from labkit.files import locked\n")
    assert "    try:\n        import fcntl\n    except ImportError:" in text
    assert "\nimport fcntl" not in text
