"""What is installed: the core alone (watch, compare, diagnose, nccl), or the lab as well."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

PACKAGE = Path(__file__).parent
CHECKOUT = PACKAGE.parent
# What holds notebooks/, docs/ and results/: in a wheel a folder of the package.
SHIPPED = PACKAGE / "shipped" if (PACKAGE / "shipped").is_dir() else CHECKOUT

# What the lab imports, beside what the core does.  opencv-python-headless is the same cv2.
LAB = (
    "torch", "cv2", "PIL", "simplejpeg", "pandas", "matplotlib", "scipy", "ipywidgets", "jinja2",
    "cloudpickle", "joblib", "fsspec", "filelock", "prefetch_generator",
)  # fmt: skip


def extra(name: str) -> str:
    """Return what pip installs one of labkit's extras by, quoted for a shell."""
    return f"'torch-labkit[{name}]'"  # PyPI's labkit is another project


def why_no_lab() -> str:
    """Return what of the lab is missing and how to install it; empty where all is installed."""
    missing = [name for name in LAB if find_spec(name) is None]
    if not missing:
        return ""
    return f"needs the lab: pip install {extra('lab')} (missing: {', '.join(missing)})"
