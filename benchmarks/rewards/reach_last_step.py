def reward(now, before, action):
    """Gain in the expected stage, of 2, from 18 demonstrations."""
    a0 = now["tip_position"].norm(dim=1)
    a1 = now["target_to_tip"].norm(dim=1)
    a_0 = -((((a0 - 0.2739) / 0.1129) ** 2 / 2 + -2.182) + (((a1 - 0.3588) / 0.2034) ** 2 / 2 + -1.593))
    a_1 = -((((a0 - 0.3555) / 0.0758) ** 2 / 2 + -2.58) + (((a1 - 0.03503) / 0.01053) ** 2 / 2 + -4.554))
    a = torch.stack([a_0, a_1], 1)
    a = torch.exp(a - a.amax(1, keepdim=True))
    a_stage = (1 * a[:, 1]) / a.sum(1)
    b0 = before["tip_position"].norm(dim=1)
    b1 = before["target_to_tip"].norm(dim=1)
    b_0 = -((((b0 - 0.2739) / 0.1129) ** 2 / 2 + -2.182) + (((b1 - 0.3588) / 0.2034) ** 2 / 2 + -1.593))
    b_1 = -((((b0 - 0.3555) / 0.0758) ** 2 / 2 + -2.58) + (((b1 - 0.03503) / 0.01053) ** 2 / 2 + -4.554))
    b = torch.stack([b_0, b_1], 1)
    b = torch.exp(b - b.amax(1, keepdim=True))
    b_stage = (1 * b[:, 1]) / b.sum(1)
    return a_stage - b_stage
