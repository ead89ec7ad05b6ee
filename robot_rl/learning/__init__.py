"""Components of learning methods."""
