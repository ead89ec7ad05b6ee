"""Episodes of one robot: start, steps, operator, outcome."""
