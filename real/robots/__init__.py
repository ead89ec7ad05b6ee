"""Drivers: a robot's own topics on one side, the named state views on the other."""
