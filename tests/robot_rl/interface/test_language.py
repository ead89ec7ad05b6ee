"""Instructions as bytes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robot_rl.interface.language import LONGEST, decode, encode
from robot_rl.util.errors import ConfigError

texts = st.text(min_size=1, max_size=LONGEST // 4).filter(lambda t: t.strip() and "\0" not in t)


@given(st.lists(texts, min_size=1, max_size=4))
def test_round_trip(instructions: list[str]) -> None:
    rows = encode(instructions)
    assert rows.shape == (len(instructions), LONGEST) and rows.dtype is torch.uint8
    assert decode(rows) == [text.strip() for text in instructions]


def test_longest_instruction_fits_and_longer_is_refused() -> None:
    assert decode(encode(["a" * LONGEST])) == ["a" * LONGEST]
    with pytest.raises(ConfigError, match=f"has {LONGEST + 1} bytes, and at most {LONGEST}"):
        encode(["é" * (LONGEST // 2) + "a"])


def test_empty_instruction_is_refused_and_invalid_utf8_decoded() -> None:
    for text in ("", "  \n", "lift\0it"):
        with pytest.raises(ConfigError, match="says nothing"):
            encode(["lift the cube", text])
    broken = torch.zeros(1, LONGEST, dtype=torch.uint8)
    broken[0, :3] = torch.tensor([0xFF, 0xFE, 0x41])
    assert decode(broken) == ["\ufffd\ufffdA"]
    assert decode(torch.zeros(2, LONGEST, dtype=torch.uint8)) == ["", ""]
