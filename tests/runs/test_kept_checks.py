"""A kept check counts only where all that it depends on is the same."""

import json
from types import ModuleType

import pytest

import labkit as lab
from labkit.runs.kept_checks import FILE, KeptCheck, find_kept, hash_sources, keep

DEPENDS_ON = {"check": "rates", "kernel": "6.1", "readers": 2}
CHECK = KeptCheck(depends_on=DEPENDS_ON, result=[1, 2], checked_utc="2026-01-02T03:04:05Z")


LATER = KeptCheck(depends_on=DEPENDS_ON, result=[3], checked_utc="2027-01-02T03:04:05Z")


def test_a_check_is_found_by_what_it_depends_on_and_a_later_one_replaces_it(tmp_path):
    other = KeptCheck(depends_on={"check": "images"}, result=[], checked_utc="")
    for check in (CHECK, other):
        keep(tmp_path, check)
        assert find_kept(tmp_path, check.depends_on) == check
    for changed in ({"kernel": "6.2"}, {"readers": 4}, {"more": ""}):
        assert find_kept(tmp_path, DEPENDS_ON | changed) is None
    keep(tmp_path, LATER)
    assert find_kept(tmp_path, DEPENDS_ON) == LATER
    assert find_kept(tmp_path, other.depends_on) == other
    stored = json.loads((tmp_path / FILE).read_text())
    assert [each["depends_on"] for each in stored] == [other.depends_on, DEPENDS_ON]


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[1]", '[{"result": []}]', pytest.param("[" * 99_999, id="in depth")],
)
def test_another_file_of_that_name_keeps_nothing_and_is_replaced(tmp_path, content):
    (tmp_path / FILE).write_text(content)
    assert find_kept(tmp_path, DEPENDS_ON) is None
    keep(tmp_path, CHECK)
    assert find_kept(tmp_path, DEPENDS_ON) == CHECK


def test_nothing_is_kept_beside_parts_of_the_users_own(tmp_path, monkeypatch):
    keep(tmp_path, CHECK)
    monkeypatch.setitem(lab.DECODERS, "mine", lambda jpeg: None)
    assert find_kept(tmp_path, DEPENDS_ON) is None
    keep(tmp_path, LATER)
    assert json.loads((tmp_path / FILE).read_text())[0]["result"] == CHECK.result


def test_changed_sources_of_a_module_or_in_a_package_have_another_hash(tmp_path):
    module, package = ModuleType("one"), ModuleType("several")
    module.__file__ = str(tmp_path / "one.py")
    package.__file__ = str(tmp_path / "several" / "__init__.py")
    package.__path__ = [str(tmp_path / "several")]
    (tmp_path / "several" / "below").mkdir(parents=True)
    inside = tmp_path / "several" / "below" / "__init__.py"
    for path in (tmp_path / "one.py", tmp_path / "several" / "__init__.py", inside):
        path.write_text("A = 1")
    before = hash_sources(module, package)
    assert list(before) == ["one", "several"]
    inside.write_text("A = 2")
    after = hash_sources(module, package)
    assert (after["one"] == before["one"], after["several"] == before["several"]) == (True, False)
    (tmp_path / "one.py").write_text("A = 2")
    assert hash_sources(module)["one"] != before["one"]
