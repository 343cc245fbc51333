"""Pipelines to run and to read: `holdfast run examples/netmon.py`."""
