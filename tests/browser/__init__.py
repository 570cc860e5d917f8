"""The lab in a real browser; a package, so that its server ends with the last of its tests."""
