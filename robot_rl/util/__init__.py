"""Small helpers: files, errors, registries, settings, seeds."""
