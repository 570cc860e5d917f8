"""Diagnosis: where the time of a person's own training goes, what would help, and whether it did.

    loader, step ─ arms, stages ─▶ model ─▶ remedies, predicted ─▶ verify, measured

`watch` follows a loop as it runs; `diagnose` takes loader and step apart.
"""
