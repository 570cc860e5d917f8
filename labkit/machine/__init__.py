"""The machine that labkit runs on: what it has, and what goes on in it."""
