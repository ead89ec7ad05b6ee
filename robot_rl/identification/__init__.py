"""Fit parameters of a simulation to the log of a robot: `robot-rl sysid`.

`log` reads what was commanded and measured, `plant` simulates it with candidate parameters, `fit` finds the nearest
ones and their confidence, `tracker` the errors of tracked objects, and `identify` brings them together.
"""
