"""Gymnasium environments of other packages, in this process or in another Python."""
