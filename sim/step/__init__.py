"""One control period of n simulations, and the start of their episodes."""
