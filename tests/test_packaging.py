"""pyproject (ranges), constraints (what was tested) and environment.yml stay together."""

import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from labkit.install import LAB

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
LINES = (ROOT / "constraints.txt").read_text().splitlines()
PINS = [Requirement(line) for line in LINES if line and not line.startswith("#")]
WANTED = [
    Requirement(line)
    for lines in (PROJECT["dependencies"], *EXTRAS.values())
    for line in lines
    if not line.startswith(PROJECT["name"])
]
# The first release of each supported Python: a pin for a later one would exclude it.
PYTHONS = ("3.11.0", "3.12.0", "3.13.0")


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("wanted", WANTED, ids=lambda wanted: wanted.name)
def test_every_dependency_has_one_pin_inside_its_range(wanted, python):
    linux = {"sys_platform": "linux", "os_name": "posix", "platform_machine": "x86_64"}
    place = default_environment() | linux
    place |= {"python_full_version": python, "python_version": python.rpartition(".")[0]}
    pins = [
        pin
        for pin in PINS
        if canonicalize_name(pin.name) == canonicalize_name(wanted.name)
        and (pin.marker is None or pin.marker.evaluate(place))
    ]
    ((pin,),) = ((*pin.specifier,) for pin in pins)
    assert pin.operator == "=="
    assert wanted.specifier.contains(pin.version)


def test_what_the_lab_imports_is_what_its_extra_installs():
    modules = {"opencv-python": "cv2", "pillow": "PIL"}
    names = [Requirement(line).name for line in EXTRAS["lab"]]
    # JupyterLab is started, not imported.
    assert set(LAB) == {modules.get(name, name) for name in names} - {"jupyterlab"}


def test_conda_names_the_labs_packages_and_a_supported_python():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *conda, pip = environment["dependencies"]
    (python,) = (Requirement(line.replace("=", "==")) for line in conda if line.startswith("pyth"))
    (version,) = python.specifier
    assert Requirement(f"python{PROJECT['requires-python']}").specifier.contains(version.version)
    options = [line for line in pip["pip"] if line.startswith("-")]
    assert options == ["--constraint constraints.txt", "--editable .[lab]"]
    names = {line for line in pip["pip"] if not line.startswith("-")}
    assert names == {Requirement(line).name for line in EXTRAS["lab"]}


def test_no_text_installs_the_stranger_of_this_name():
    pattern = r"""pip3? install (-\S+ )*['"]?labkit\b"""
    command = ["git", "grep", "-nIP", pattern, "--", ".", ":!results"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (shown.stdout, shown.stderr) == ("", "")
