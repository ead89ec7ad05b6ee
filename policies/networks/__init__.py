"""Networks and distributions that policies are built of."""
