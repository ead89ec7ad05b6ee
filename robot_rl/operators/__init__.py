"""Scripted operators who correct a policy, in simulation and on the twin."""
