"""Plough's tests, as packages: they mirror src/plough and share `tests.machines`."""
