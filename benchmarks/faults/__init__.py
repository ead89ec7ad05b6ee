"""Fault injection: kills, full disks, forged files. `python -m benchmarks.faults` injects all of these."""
