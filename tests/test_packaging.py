"""pyproject (ranges), constraints (what was tested) and environment.yml stay together."""

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
LINES = (ROOT / "constraints.txt").read_text().splitlines()
PINNED = [Requirement(line) for line in LINES if line and not line.startswith("#")]
PINS = {canonicalize_name(pin.name): pin for pin in PINNED}
# What `dev` takes of labkit's own extras is listed there.
OF_DEV = [line for line in EXTRAS["dev"] if not line.startswith("labkit[")]
OPTIONAL = [line for extra in ("formats", "remote", "spark") for line in EXTRAS[extra]]
WANTED = list(map(Requirement, [*PROJECT["dependencies"], *OF_DEV, *OPTIONAL]))
# Too large for `dev`, or made for CUDA alone; test_rivals.py and parts/decoding say where they are
# missing.
RIVALS = list(map(Requirement, EXTRAS["rivals"]))
NOT_IN_DEV = [*RIVALS, *map(Requirement, EXTRAS["decoders"])]


@pytest.mark.parametrize("wanted", [*WANTED, *NOT_IN_DEV], ids=lambda wanted: wanted.name)
def test_every_dependency_is_pinned_inside_its_range(wanted):
    (pin,) = PINS[canonicalize_name(wanted.name)].specifier
    assert pin.operator == "=="
    assert wanted.specifier.contains(pin.version)


@pytest.mark.parametrize("wanted", WANTED, ids=lambda wanted: wanted.name)
def test_what_is_tested_here_is_what_is_pinned(wanted):
    (pin,) = PINS[canonicalize_name(wanted.name)].specifier
    # torch names its build behind a plus: 2.13.0+cpu
    assert metadata.version(wanted.name).split("+")[0] == pin.version


@pytest.mark.needs_rivals
@pytest.mark.parametrize("wanted", RIVALS, ids=lambda wanted: wanted.name)
def test_the_rivals_tested_here_are_what_is_pinned(wanted):
    test_what_is_tested_here_is_what_is_pinned(wanted)


def test_conda_installs_the_pinned_set_with_a_supported_python():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *conda, pip = environment["dependencies"]
    (python,) = (Requirement(line.replace("=", "==")) for line in conda if line.startswith("pyth"))
    (version,) = python.specifier
    assert Requirement(f"python{PROJECT['requires-python']}").specifier.contains(version.version)
    assert pip["pip"] == ["--constraint constraints.txt", "--editable ."]


def test_the_command_line_is_installed():
    assert any(point.name == "labkit" for point in metadata.entry_points(group="console_scripts"))
