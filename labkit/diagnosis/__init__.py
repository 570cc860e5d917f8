"""Diagnosis of the user's own training: where its time goes, what would help, whether it did.

    a script ─ hook ─▶ loops ─▶ watch, answer         whether data loading is the problem
    a script ─ hook ─▶ live ─▶ loader, step
    loader, step ─ arms, probe, gpu ─▶ facts ─▶ bounds ─▶ rules ─▶ verify, say        why

`watch` looks at a training while it runs; `diagnose` decides which batches it gets.
"""

import os

# A warning about the system's clock, which advises options that no user of labkit can set; one busy
# moment brings it about.  It is only read while pyinstrument is imported.
os.environ.setdefault("PYINSTRUMENT_IGNORE_OVERHEAD_WARNING", "1")
