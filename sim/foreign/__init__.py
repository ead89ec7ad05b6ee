"""Environments that others wrote, in this process or in another Python."""
