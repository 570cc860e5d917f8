"""The lab in environments other than a developer's machine; see `__main__`."""
