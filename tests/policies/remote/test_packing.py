"""Messages survive packing; invalid bytes and values are refused."""

from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from policies.remote.packing import PackingError, pack, unpack

DTYPES = st.one_of(
    arrays.boolean_dtypes(), arrays.integer_dtypes(endianness="?"), arrays.unsigned_integer_dtypes(endianness="?"),
    arrays.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
)  # fmt: skip
ARRAYS = arrays.arrays(DTYPES, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
MESSAGES = st.dictionaries(st.text(), PLAIN | ARRAYS | st.lists(PLAIN, max_size=3), max_size=4)


def packed(dtype: Any, shape: Any, data: Any) -> bytes:
    message: bytes = msgpack.packb({b"__ndarray__": True, b"dtype": dtype, b"shape": shape, b"data": data})
    return message


@given(MESSAGES)
def test_message_round_trip(message: dict[str, Any]) -> None:
    back = unpack(pack(message))
    assert back.keys() == message.keys()
    for key, value in message.items():
        if isinstance(value, np.ndarray):
            assert isinstance(back[key], np.ndarray) and back[key].shape == value.shape
            assert back[key].dtype == value.dtype.newbyteorder("=") and back[key].flags.writeable
            np.testing.assert_array_equal(back[key], value)
        else:
            np.testing.assert_equal(back[key], value)


@given(st.sampled_from(["<f4", ">f8", "<i8", "|u1", "|b1", "<f2"]), st.integers(0, 1))
def test_scalar_round_trip(name: str, value: int) -> None:
    number = np.dtype(name).type(value)
    back = unpack(pack({"n": number}))["n"]
    assert back == number and np.asarray(back).dtype == np.dtype(name).newbyteorder("=")


def test_encoding_is_openpis() -> None:
    raw = msgpack.unpackb(pack({"a": np.ones((2, 1), np.float32), "b": np.int64(3)}))
    assert raw["a"] == {b"__ndarray__": True, b"data": np.ones(2, "f4").tobytes(), b"dtype": "<f4", b"shape": [2, 1]}
    assert raw["b"] == {b"__npgeneric__": True, b"data": 3, b"dtype": "<i8"}


@pytest.mark.parametrize(
    "value",
    [np.array([{}], object), np.array(["text"]), np.array([1j]), np.zeros(2, "i4,f4"), np.datetime64("2000"), {1, 2},
     print, 2**64, np.longdouble(1)],
)  # fmt: skip
def test_unsupported_values_are_refused(value: Any) -> None:
    with pytest.raises(PackingError):
        pack({"a": value})


@pytest.mark.parametrize(("data", "message_part"), [
    (b"", "no msgpack"),
    (b"\xc1", "no msgpack"),
    (pack([1, 2]) + b"\x00", "no msgpack"),
    (pack({"a": np.ones(4)})[:-3], "no msgpack"),
    (b"\x91" * 2000, "no msgpack"),
    (b"\xdf\xff\xff\xff\xff", "no msgpack"),
    (packed("|O", [1], bytes(8)), "no numbers"),
    (packed("i4,f4", [1], bytes(8)), "no numbers"),
    (packed("|S100000000", [], b""), "no numbers"),
    (packed(None, [1], bytes(8)), "no numbers"),
    (packed("<f4", [2], bytes(4)), "8 bytes, and 4"),
    (packed("<f4", [2**40, 2**40], b""), "and 0 of them"),
    (packed("<f4", [2**40, 0, -1], b""), "shape"),
    (packed("<f4", [1] * 9, bytes(4)), "shape"),
    (packed("<f4", [1.0], bytes(4)), "shape"),
    (packed("<f4", "1", bytes(4)), "shape"),
    (packed("<f4", [1], "text"), "no of them"),
    (msgpack.packb({b"__npgeneric__": True, b"dtype": "|u1", b"data": 256}), "number"),
    (msgpack.packb({b"__npgeneric__": True, b"dtype": "<f4", b"data": "1"}), "number"),
])  # fmt: skip
def test_invalid_bytes_are_refused(data: bytes, message_part: str) -> None:
    with pytest.raises(PackingError, match=message_part):
        unpack(data)


@given(MESSAGES, st.integers(0, 400), st.integers(1, 255), st.binary(max_size=200))
def test_damaged_bytes_raise_only_packing_errors(message: dict[str, Any], at: int, by: int, random: bytes) -> None:
    damaged = bytearray(pack(message))
    damaged[at % len(damaged)] ^= by
    for data in (bytes(damaged), random):
        try:
            unpack(data)
        except PackingError as error:
            assert str(error)
