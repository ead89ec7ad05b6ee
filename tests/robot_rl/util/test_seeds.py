"""Learning seeds are disjoint, and below held-out seeds."""

from hypothesis import given, settings
from hypothesis import strategies as st

from robot_rl.util.seeds import HELD_OUT, LEARNING, training_seed

wholes = st.integers(min_value=0)


@settings(deadline=None, derandomize=True, max_examples=500)
@given(wholes, wholes)
def test_learning_seeds_are_below_held_out_seeds_and_share_no_environment(seed: int, recorded: int) -> None:
    assert 0 <= training_seed(seed, recorded) < LEARNING == HELD_OUT - 2**20
    assert abs(training_seed(seed + 1) - training_seed(seed)) > 2**16


def test_first_5000_user_seeds_share_no_environment() -> None:
    first = sorted(training_seed(seed) for seed in range(5000))
    assert first[0] == 0 and min(b - a for a, b in zip(first, first[1:], strict=False)) == 125_067
