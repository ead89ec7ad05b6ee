"""Rendering of simulations and visual randomization."""
