"""`python -m labkit.watch train.py` is `labkit watch train.py`, for launchers as torchrun -m."""

import sys

import labkit
from labkit.cli import main

if __name__ == "__main__":
    sys.exit(main(["watch", *sys.argv[1:]]))

# `import labkit.watch` keeps the function of this name.
sys.modules[__name__] = labkit.watch  # type: ignore[assignment]
