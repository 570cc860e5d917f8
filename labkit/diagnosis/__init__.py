"""Diagnosis of the user's own training: where its time goes, what would help, whether it did.

    loader, step ─ measure, stages ─▶ predict ─▶ remedies ─▶ verify

`watch` shows a loop's phases while it runs; `diagnose` measures loader and step separately.
"""
