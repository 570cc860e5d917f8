"""Recipes: a run's winner as plain PyTorch, without labkit.

run ─▶ winner ─▶ header: gain and conditions       ┐
└─▶ program: pieces, a loop around them, inlined ┴─▶ one file for a train.py
"""
