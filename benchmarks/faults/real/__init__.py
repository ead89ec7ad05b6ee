"""Faults of a deployed policy's processes and messages, on robots that others wrote where there are any.

    python -m benchmarks.faults.real
"""
