"""Agents: one published algorithm, or the base that several share, a file."""
