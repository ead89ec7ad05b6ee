"""Observation specs: checks, JSON and Gymnasium spaces."""

import json
from typing import Any

import gymnasium as gym
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robot_rl.interface.observation_spec import (
    IMAGES,
    LANGUAGE,
    LANGUAGE_FIELD,
    STATE,
    ObservationField,
    ObservationSpec,
    picture_field,
)
from robot_rl.interface.spec import Field, VectorSpec
from robot_rl.util.errors import ConfigError

sizes = st.integers(0, 5)
fields = st.one_of(
    sizes.map(lambda d: ObservationField((d,), unit="rad", names=tuple(f"q{k}" for k in range(d)))),
    sizes.map(lambda d: ObservationField((d,), kind="privileged", low=(-1.0,) * d, high=(1.0,) * d)),
    st.tuples(sizes, sizes).map(lambda s: picture_field(*s)),
    st.just(LANGUAGE_FIELD),
)
specs = st.dictionaries(st.text(min_size=1, max_size=8), fields, min_size=1, max_size=4).map(
    lambda d: ObservationSpec(tuple(d.items()))
)
SPEC = ObservationSpec.from_vector(VectorSpec((Field("q", ("a", "b"), "rad", (-1.0, -2.0), (1.0, 2.0)),))) | {
    f"{IMAGES}front": picture_field(4, 6),
    LANGUAGE: LANGUAGE_FIELD,
}


@given(specs, st.integers(0, 3))
def test_zeros_fit_and_json_round_trip(spec: ObservationSpec, n: int) -> None:
    again = ObservationSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again == spec and list(again) == list(spec)
    spec.check(spec.zeros(n))
    again.check(spec.zeros(n), torch.device("cpu"))


def test_spec_of_a_vector_keeps_names_units_and_ranges_and_has_gymnasium_spaces() -> None:
    field = SPEC[STATE]
    assert (field.names, field.unit, field.low, field.high) == (("q.a", "q.b"), "rad", (-1.0, -2.0), (1.0, 2.0))
    mixed = VectorSpec((*[Field("q", ("a",), u, (0.0,), (1.0,)) for u in ("rad", "m")],))
    assert ObservationSpec.from_vector(mixed)[STATE].unit == "mixed"
    batch, one = SPEC.gymnasium_space(3), SPEC.gymnasium_space()
    assert set(batch) == set(one) == set(SPEC)
    state = SPEC.zeros(3)[STATE] + 1e3  # a fall may exceed the nominal range
    assert batch[STATE].contains(state.numpy()) and one[STATE].contains(state[0].numpy())
    assert one[f"{IMAGES}front"] == gym.spaces.Box(0, 255, (4, 6, 3), "uint8")
    assert one[LANGUAGE] == gym.spaces.Box(0, 255, (128,), "uint8")


@pytest.mark.parametrize(("key", "value", "message"), [
    (STATE, None, "lacks 'observation.state'; it has observation.images.front, observation.language"),
    (STATE, torch.zeros(3, 3), r"'observation.state' has shape \(3, 3\), not \(n, 2\)"),
    (STATE, torch.zeros(3, 2, dtype=torch.double), "is float64, not float32"),
    (STATE, [[0.0, 0.0]] * 3, "is list, not a tensor"),
    (f"{IMAGES}front", torch.zeros(2, 4, 6, 3, dtype=torch.uint8), r"shape \(2, 4, 6, 3\), not \(3, 4, 6, 3\)"),
    (f"{IMAGES}front", torch.zeros(3, 3, 4, 6, dtype=torch.uint8), r"not \(3, 4, 6, 3\)"),
    (f"{IMAGES}front", torch.zeros(3, 4, 6, 3, dtype=torch.uint8, device="meta"), "is on meta, not on cpu"),
    (LANGUAGE, ["lift", "lift", "lift"], "is list, not a tensor"),
    (LANGUAGE, torch.zeros(3, 5, dtype=torch.uint8), r"shape \(3, 5\), not \(3, 128\)"),
    ("action", torch.zeros(3, 1), "has 'action', which is not in its spec"),
])  # fmt: skip
def test_entries_that_do_not_fit_are_named(key: str, value: Any, message: str) -> None:
    observation = SPEC.zeros(3) | {key: value}
    if value is None:
        del observation[key]
    with pytest.raises(ConfigError, match=message):
        SPEC.check(observation)


@pytest.mark.parametrize(("entry", "message"), [
    ({"shape": [4, 6, 1], "dtype": "uint8", "kind": "picture"}, r"shape \(height, width, 3\)"),
    ({"shape": [2], "kind": "smell"}, "kind 'smell'"),
    ({"shape": [2], "kind": "picture"}, "kind 'picture' cannot have dtype 'float32'"),
    ({"shape": [2], "low": [0.0], "high": [1.0]}, "low has 1"),
    ({"shape": [], "dtype": "uint8", "kind": "text"}, "cannot have shape"),
    ({"shape": [-1]}, "cannot have shape"),
    ({"shape": [2], "colour": "red"}, "colour"),
])  # fmt: skip
def test_invalid_field_is_refused_by_key(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"observation 'x': .*{message}"):
        ObservationSpec.from_json({"x": entry})
