"""Any JSON, and a document in which one place is changed, for Hypothesis."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=9), below, max_size=3)
    ),
    max_leaves=5,
)


@st.composite
def changed(draw: st.DrawFn, document: Any) -> Any:
    """A copy of a JSON document in which one value is replaced, removed, or has another beside it.

    Of a list only the first value is changed: a document may hold thousands of times.
    """
    copy = json.loads(json.dumps(document))
    holder, key = draw(st.sampled_from(list(_places(copy))))
    what = draw(st.sampled_from(["replace", "remove", "add"]))
    if what == "remove":
        del holder[key]
    elif what == "replace":
        holder[key] = draw(ANYTHING)
    elif isinstance(holder, list):
        holder.append(draw(ANYTHING))
    else:
        holder[draw(st.text(max_size=9))] = draw(ANYTHING)
    return copy


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """List the containers of a document, each with every key of it."""
    keys = list(value) if isinstance(value, dict) else range(len(value))[:1]
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])
