"""Benchmarks: one folder per question. `python -m bench --help`."""
