"""Commands on the nodes of a Ray cluster, with their folders copied there and back."""
