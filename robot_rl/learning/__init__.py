"""Parts that learning methods are put together from."""
