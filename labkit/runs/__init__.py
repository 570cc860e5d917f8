"""A run: from an experiment to rows on the disk."""
