"""Reflections of observations and actions."""

import pytest
import torch

from robot_rl.interface.symmetry import Reflection, joined


def test_reflection_swaps_and_flips_also_when_restricted_to_components() -> None:
    # height, sideways velocity, left leg, right leg
    assert Reflection([0, 1, 3, 2], [1, -1, 1, 1])(torch.tensor([5.0, 2.0, 7.0, 9.0])).tolist() == [5, -2, 9, 7]
    whole = Reflection([0, 2, 1, 3, 4], [1, 1, 1, -1, 1])
    assert whole.only([1, 2, 3])(torch.tensor([7.0, 9.0, 2.0])).tolist() == [9, 7, -2]
    with pytest.raises(ValueError, match=r"images of \[2\] are not kept"):
        whole.only([0, 1])


def test_reflection_twice_is_the_identity_and_joined_parts_are_mirrored_separately() -> None:
    reflection = joined(Reflection([1, 0, 2], [-1, -1, -1]), Reflection([0], [1])).repeated(3)
    x = torch.randn(4, 2, 12)
    assert len(reflection) == 12
    assert torch.equal(reflection(reflection(x)), x) and not torch.equal(reflection(x), x)
    left, right = Reflection([1, 0], [1, 1]), Reflection([0], [-1])
    x = torch.tensor([1.0, 2.0, 3.0])
    assert joined(left, right)(x).tolist() == [2, 1, -3]
    assert len(joined(left, Reflection([], []))) == 2


@pytest.mark.parametrize(("index", "sign", "message"), [
    ([1, 2, 0], [1, 1, 1], r"twice.*at \[0, 1, 2\]"), ([1, 0], [1, -1], r"twice.*at \[0, 1\]"), ([0], [2], "twice"),
    ([0, 1], [1], "2 indices and 1 signs"), ([0, 2], [1, 1], "outside 0 to 1"), ([0, -1], [1, 1], "outside 0 to 1"),
])  # fmt: skip
def test_invalid_reflections_are_refused(index: list[int], sign: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Reflection(index, sign)
