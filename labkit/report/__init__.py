"""What is shown of a run: table, charts, findings, report, recipe and share file."""
