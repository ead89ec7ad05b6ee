"""Measure whether each method does what its paper claims: a table of checks, and what runs them."""
