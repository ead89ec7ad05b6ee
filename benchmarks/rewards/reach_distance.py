def reward(now, before, action):
    """Negative distance to the target."""
    return -now["target_to_tip"].norm(dim=1)
