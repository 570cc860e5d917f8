"""Diagnosis: where the time of a person's own training goes, and what would help."""
