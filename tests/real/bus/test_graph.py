from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from real.bus.graph import Entry, Graph, graph_bytes, owner
from real.bus.messages import gid_size, load_store

STORES = {16: load_store(16), 24: load_store(24)}
ME, READER, WRITER = bytes(range(16)), b"r" * 16, b"w" * 16


def string(text: str) -> bytes:
    raw = text.encode() + b"\0"
    return struct.pack("<I", len(raw)) + raw + bytes(-len(raw) % 4)


@pytest.mark.parametrize("size", [16, 24])
def test_golden_bytes(size: int) -> None:
    def gid(guid: bytes) -> bytes:
        return guid.ljust(size, b"\0")

    one = struct.pack("<I", 1)
    expected = b"\0\1\0\0" + gid(ME) + one + string("/arm") + string("policy")
    expected += one + gid(READER) + one + gid(WRITER)
    assert graph_bytes(ME, [Entry("/arm", "policy", [READER], [WRITER])], STORES[size]) == expected


@pytest.mark.parametrize(("distro", "size"), [("humble", 24), ("iron", 16), ("jazzy", 16), (None, 16)])
def test_the_distro_sets_the_gid_size(monkeypatch: pytest.MonkeyPatch, distro: str | None, size: int) -> None:
    if distro is None:
        monkeypatch.delenv("ROS_DISTRO", raising=False)
    else:
        monkeypatch.setenv("ROS_DISTRO", distro)
    assert gid_size() == size


guid = st.binary(min_size=16, max_size=16)
token = st.from_regex(r"[a-z]{1,8}", fullmatch=True)
entry = st.builds(Entry, token.map("/{}".format), token, st.lists(guid, max_size=3), st.lists(guid, max_size=3))


@settings(max_examples=40, deadline=None)
@given(guid, st.lists(entry, max_size=3), st.sampled_from([16, 24]))
def test_announcements_round_trip(me: bytes, nodes: list[Entry], size: int) -> None:
    seen = Graph(STORES[size])
    seen.update(graph_bytes(me, [Entry("/", "old")], STORES[size]))
    seen.update(graph_bytes(me, nodes, STORES[size]))  # replaces, not adds
    assert seen.entries() == nodes


@given(st.binary(max_size=80))
def test_malformed_announcements_are_ignored(raw: bytes) -> None:
    seen = Graph(STORES[16])
    seen.update(graph_bytes(ME, [Entry("/", "n", [READER])], STORES[16]))
    seen.update(b"\0\1\0\0" + b"\xff" * 16 + raw)
    assert owner(READER, seen.entries()) == "/n"


def test_number_of_participants_is_bounded() -> None:
    seen = Graph(STORES[16])
    for i in range(1100):
        seen.update(graph_bytes(struct.pack("<IIII", i, 0, 0, 0), [Entry("/", f"n{i}")], STORES[16]))
    assert len(seen.entries()) == 1000 and seen.entries()[-1].name == "n1099"


def test_endpoint_without_a_node_is_named_by_its_participant() -> None:
    assert owner(WRITER, []) == f"an unnamed DDS participant ({(b'w' * 12).hex()})"
