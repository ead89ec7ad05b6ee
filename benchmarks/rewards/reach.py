def reward(now, before, action):
    """Progress to the target, small costs, and a bonus when done."""
    distance = now["target_to_tip"].norm(dim=1)
    progress = before["target_to_tip"].norm(dim=1) - distance
    done = (distance < 0.02).float()
    return 5.0 * progress - 0.1 * distance - 0.01 * action.square().sum(dim=1) + 2.0 * done
