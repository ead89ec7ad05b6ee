"""Training loops, run folders, metrics and checkpoints."""
