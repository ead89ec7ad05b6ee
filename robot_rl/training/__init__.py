"""Learning loops, and what they share: run folders, metrics, checkpoints."""
