"""Agents: each file holds a published algorithm, or a base class that several share."""
