"""Agents: each file holds a published algorithm, or a base class of several algorithms."""
