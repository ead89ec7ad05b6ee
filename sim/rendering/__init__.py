"""Frames of simulations, and what differs in their looks."""
