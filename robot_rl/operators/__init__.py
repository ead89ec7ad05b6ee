"""Scripted operators that correct a policy, in simulation and on the twin."""
