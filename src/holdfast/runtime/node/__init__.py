"""One node: a process around the core's `Node`. Start with `process.py`, then `loop.py`."""
