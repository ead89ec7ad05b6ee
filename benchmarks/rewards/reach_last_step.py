def reward(now, before, action):
    """Gain in the expected stage, of 2, from 18 demonstrations."""
    a0 = now["tip_position"].norm(dim=1)
    a1 = now["target_to_tip"].norm(dim=1)
    a_0 = -((((a0 - 0.278) / 0.1126) ** 2 / 2 + -2.184) + (((a1 - 0.3424) / 0.2106) ** 2 / 2 + -1.558))
    a_1 = -((((a0 - 0.3695) / 0.08337) ** 2 / 2 + -2.484) + (((a1 - 0.02503) / 0.0158) ** 2 / 2 + -4.148))
    a = torch.stack([a_0, a_1], 1)
    a = torch.exp(a - a.amax(1, keepdim=True))
    a_stage = (1 * a[:, 1]) / a.sum(1)
    b0 = before["tip_position"].norm(dim=1)
    b1 = before["target_to_tip"].norm(dim=1)
    b_0 = -((((b0 - 0.278) / 0.1126) ** 2 / 2 + -2.184) + (((b1 - 0.3424) / 0.2106) ** 2 / 2 + -1.558))
    b_1 = -((((b0 - 0.3695) / 0.08337) ** 2 / 2 + -2.484) + (((b1 - 0.02503) / 0.0158) ** 2 / 2 + -4.148))
    b = torch.stack([b_0, b_1], 1)
    b = torch.exp(b - b.amax(1, keepdim=True))
    b_stage = (1 * b[:, 1]) / b.sum(1)
    return a_stage - b_stage
