"""Plain PyTorch programs that import no labkit, and `thread_loader.py`, a file to copy.

`Run.recipe()` fills in one of these programs; see `labkit/report/recipe.py`.
"""
