"""Our own speed and truth; each runs as `python -m benchmarks.<name>` and prints what it finds."""
