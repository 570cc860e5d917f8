"""Synthetic photographs: scenes, their textures, and the files of a dataset."""
