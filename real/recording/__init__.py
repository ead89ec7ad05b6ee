"""Datasets, logs and videos of a robot's episodes."""
