"""Control periods and episode starts of n simulations."""
