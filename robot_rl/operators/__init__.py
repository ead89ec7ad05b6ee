"""Scripted people who correct a policy, for simulation and the twin."""
