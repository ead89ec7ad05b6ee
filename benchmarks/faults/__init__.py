"""Fault injection: kills, full disks, forged files. `python -m benchmarks.faults` runs all of them."""
