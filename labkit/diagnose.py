"""`python -m labkit.diagnose train.py` is `labkit diagnose train.py`, for launchers as torchrun."""

import sys

import labkit
from labkit.cli import main

if __name__ == "__main__":
    sys.exit(main(["diagnose", *sys.argv[1:]]))

# `import labkit.diagnose` keeps the function of this name.
sys.modules[__name__] = labkit.diagnose  # type: ignore[assignment]
