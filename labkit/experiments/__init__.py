"""The experiments: what each one asks, its variants, and what the documents reported."""
