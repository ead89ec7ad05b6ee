"""The table of faults (`python -m benchmarks.faults.real`): its judges, its forged messages, and one of its rows."""

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.faults.real import messages
from benchmarks.faults.real.__main__ import attempt
from benchmarks.faults.real.documented import DOCUMENTED
from benchmarks.faults.real.judge import WATCHED, damped, jump, settled
from benchmarks.faults.real.messages import FLOOD, JOINT_STATE, LATE, Faulty
from benchmarks.faults.real.policy import save
from benchmarks.faults.real.stands import STANDS, Ur5e
from real.bus import decode, encode, make
from real.drivers.wire import LOW_STATE, layout
from robot_rl.cli.launch import private_domain
from robot_rl.robots import robots

TICK, SPEED = 0.005, 0.5


def trace(stops: float, speed: float = SPEED, held: float = 9.0) -> list[tuple[float, np.ndarray, bool]]:
    """Record an arm that moves at `speed`, rad/s, until it stops, and is held up until `held`, s."""
    times = np.arange(-1.0, WATCHED, TICK)
    return [(t, np.full(6, speed * min(t, stops)), bool(t <= held)) for t in times]


def test_time_until_rest_and_damping_is_measured() -> None:
    assert settled(trace(0.2), 0.0) == pytest.approx(0.2, abs=0.03)
    assert settled(trace(-0.5), 0.0) == 0.0 and settled(trace(9.0), 0.0) is None
    assert damped(trace(9.0, held=0.1), 0.0) == pytest.approx(0.1, abs=TICK)
    assert damped(trace(9.0), 0.0) is None and damped(trace(0.0, held=-0.1), 0.0) == 0.0


def test_jumps_exceed_the_speed_limits() -> None:
    limit = float(robots.get("ur5e").limit("velocity").min())
    assert jump(trace(1.0), 0.0, "ur5e") == pytest.approx(SPEED / limit, rel=0.01)
    moves = trace(1.0)
    at = len(moves) // 2
    for k in range(at, len(moves)):
        moves[k] = (moves[k][0], moves[k][1] + 0.2, True)
    assert jump(moves, 0.0, "ur5e") > 2


def test_messages_are_late_twice_swapped_or_repeated() -> None:
    sent: list[bytes] = []
    time = [0.0]
    faulty = Faulty(sent.append, lambda raw, _: raw, lambda: time[0])

    def say(fault: str, *words: bytes) -> list[bytes]:
        faulty.fault = fault
        sent.clear()
        for word in words:
            time[0] += 0.01
            faulty(word)
        return list(sent)

    assert say("", b"a", b"b") == [b"a", b"b"] and say("silent", b"c") == []
    assert say("frozen", b"d", b"e") == [b"c", b"c"] and say("flooded", b"f") == FLOOD * [b"f"]
    assert say("reordered", b"g", b"h", b"i") == [b"h", b"g"]
    late = round(LATE / 0.01)
    assert say("delayed", *(bytes([k]) for k in range(late + 3)))[-3:] == [bytes([k]) for k in range(3)]


def test_forged_messages_are_wellformed() -> None:
    raw = bytes(encode(make(JOINT_STATE, name=["a", "b"], position=np.array([0.5, -0.5])), JOINT_STATE))
    forged: dict[str, Any] = {f: decode(messages.joints(raw, f), JOINT_STATE) for f in messages.FORGED}
    assert list(forged["jump"].position) == [1.5, 0.5] and all(map(math.isnan, forged["nan"].position))
    assert forged["clock"].header.stamp.sec == 5 and list(forged["clock"].position) == [0.5, -0.5]
    wire = layout(LOW_STATE)
    raw = wire.seal(wire.empty())
    for fault in messages.FORGED:
        assert wire.open(messages.low_state(raw, fault)) is not None, "the checksum is right"


def test_every_robot_has_its_faults() -> None:
    for kind in STANDS:
        assert sum(kind.robot in cells for cells in DOCUMENTED.values()) > 12
    assert all(cells for cells in DOCUMENTED.values())


@pytest.mark.realtime
@pytest.mark.timeout(120)
def test_killed_policy_leaves_a_ur5e_at_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in private_domain().items():
        monkeypatch.setenv(name, value)
    cpus = os.sched_getaffinity(0)
    fault = "SIGKILL policy"
    found = attempt(Ur5e, fault, DOCUMENTED[fault]["ur5e"], save("ur5e", tmp_path / "bundle"), tmp_path)
    assert found["met"] and found["status"] == -9 and os.sched_getaffinity(0) == cpus
