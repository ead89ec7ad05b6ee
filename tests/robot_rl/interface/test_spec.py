"""`VectorSpec`: conversion between [-1, 1] and physical units, names, JSON."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robot_rl.interface.spec import Field, VectorSpec, box

number = st.floats(-100, 100, allow_nan=False, width=32)


@st.composite
def specs(draw: st.DrawFn) -> VectorSpec:
    fields = []
    for k in range(draw(st.integers(1, 4))):
        dims = tuple(f"d{i}" for i in range(draw(st.integers(1, 4))))
        low = tuple(draw(number) for _ in dims)
        high = tuple(v + draw(st.floats(0.125, 50, width=32)) for v in low)
        fields.append(Field(f"f{k}", dims, "m", low, high, draw(st.sampled_from(["", "base"]))))
    return VectorSpec(tuple(fields))


@settings(deadline=None, derandomize=True, max_examples=50)
@given(specs(), st.data())
def test_unit_and_physical_are_inverses(spec: VectorSpec, data: st.DataObject) -> None:
    unit = torch.tensor(data.draw(st.lists(st.floats(-1, 1), min_size=spec.size, max_size=spec.size)))
    physical = spec.to_physical(unit)
    assert ((physical >= spec.low - 1e-4) & (physical <= spec.high + 1e-4)).all()
    # A float32 near 100 in a range of 1/8 has about four significant digits of the unit value.
    assert torch.allclose(spec.to_unit(physical), unit, atol=1e-3)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(specs())
def test_json_round_trip(spec: VectorSpec) -> None:
    again = VectorSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again == spec
    assert hash(again) == hash(spec)  # tuples, not lists


def test_limits_map_to_minus_1_and_1_and_values_outside_are_clipped() -> None:
    spec = VectorSpec((Field("a", ("x", "y"), "m", (-0.04, 0.0), (0.04, 0.08)),))
    physical = spec.to_physical(torch.tensor([[-1.0, -1.0], [1.0, 1.0], [0.0, 0.0]]))
    assert torch.allclose(physical, torch.tensor([[-0.04, 0.0], [0.04, 0.08], [0.0, 0.04]]), rtol=1e-6, atol=1e-12)
    spec = VectorSpec((box("a", "x", "m", -2.0, 4.0),))
    assert spec.to_physical(torch.tensor([[5.0], [-5.0]])).tolist() == [[4.0], [-2.0]]
    assert spec.to_unit(torch.tensor([[50.0], [-50.0]])).tolist() == [[1.0], [-1.0]]


def test_names_and_slices_are_in_order() -> None:
    fields = (box("pose", "x y z", "m", -1, 1), box("width", "w", "m", 0, 1), box("rate", "a b", "rad/s", -1, 1))
    spec = VectorSpec(fields)
    assert spec.names == ["pose.x", "pose.y", "pose.z", "width.w", "rate.a", "rate.b"]
    assert spec.size == 6
    assert [spec.slice(n) for n in ("pose", "width", "rate")] == [slice(0, 3), slice(3, 4), slice(4, 6)]


@pytest.mark.parametrize(("low", "high", "message"), [
    ((0.0,), (1.0, 1.0), "differ in length"),
    ((0.0, 1.0), (1.0, 1.0), r"y: low 1.0 is not below high 1.0"),
    ((0.0, math.nan), (1.0, 1.0), "y: low nan"),
])  # fmt: skip
def test_invalid_ranges_are_refused(low: tuple[float, ...], high: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=rf"field 'tool'.*{message}"):
        Field("tool", ("x", "y"), "m", low, high)
