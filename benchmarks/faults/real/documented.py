"""What docs/safety.md promises for each fault and robot."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """A fault of one robot, and its documented end."""

    kind: str
    """SIGKILL or SIGSTOP of a process, "tell" the robot's side, or "interfere" by another program."""
    what: str
    """Process, or word."""
    state: str = "rests"
    """"rests": an arm stands still; "damped": a legged robot; "goes on": the policy moves it on; "safe": one of these;
    "keeps": the motors keep their last command, and the policy's process has ended with status 1."""
    within: float = 0.5
    """Longest time until then, s."""


def cells(kind: str, what: str, **states: tuple[str, float]) -> dict[str, Cell]:
    return {robot: Cell(kind, what, *state) for robot, state in states.items()}


ON = ("goes on", 0.0)
NOTICED, DAMPED = ("rests", 1.0), ("damped", 1.0)
"""Publishers are counted twice a second; then an arm brakes."""
DOCUMENTED: dict[str, dict[str, Cell]] = {
    # The arm's goals end: 0.1 s until an FR3's process brakes, in at most 0.4 s. A UR5e stays at its last command.
    "SIGKILL policy": cells("SIGKILL", "policy", fr3=("rests", 0.5), ur5e=("rests", 0.05), go2=("damped", 0.1)),
    "SIGSTOP policy": cells("SIGSTOP", "policy", fr3=("rests", 0.5), ur5e=("rests", 0.05), go2=("damped", 0.1)),
    # A participant that vanishes without a goodbye.
    "SIGKILL robot": cells("SIGKILL", "robot", fr3=("rests", 0.1), ur5e=("rests", 0.3), go2=("damped", 0.1)),
    "SIGSTOP robot": cells("SIGSTOP", "robot", fr3=("rests", 0.1), ur5e=("rests", 0.3), go2=("damped", 0.1)),
    "SIGKILL robot process": cells("SIGKILL", "node", fr3=("rests", 0.5)),
    "SIGSTOP robot process": cells("SIGSTOP", "node", fr3=("rests", 0.5)),
    "SIGKILL 1 kHz loop": cells("SIGKILL", "arm", fr3=("rests", 0.5)),
    "SIGSTOP 1 kHz loop": cells("SIGSTOP", "arm", fr3=("rests", 0.5)),
    "SIGKILL hand": cells("SIGKILL", "hand", fr3=("rests", 0.6)),
    # The hazard that docs/safety.md names first: nothing replaces the guard.
    "SIGKILL guard": cells("SIGKILL", "guard", go2=("keeps", 0.0)),
    "SIGSTOP guard": cells("SIGSTOP", "guard", go2=("keeps", 0.0)),
    "states cut": cells("tell", "silent", fr3=("rests", 0.5), ur5e=("rests", 0.3), go2=("damped", 0.15)),
    "states 200 ms late": cells("tell", "delayed", fr3=("rests", 0.5), ur5e=("rests", 0.3), go2=("damped", 0.15)),
    "states frozen": cells("tell", "frozen", fr3=("rests", 0.5), ur5e=("rests", 0.3), go2=("damped", 0.15)),
    "states in other order": cells("tell", "reordered", ur5e=ON, go2=ON),
    # Three processes read a Go2's states: on two cores the policy may be late, and is damped.
    "states flooded, 5 kHz": cells("tell", "flooded", ur5e=ON, go2=("safe", 0.0)),
    "states NaN": cells("tell", "nan", fr3=("rests", 0.5), ur5e=("rests", 0.3), go2=("damped", 0.15)),
    "states jump by 1 rad": cells("tell", "jump", fr3=("rests", 0.5), ur5e=("rests", 0.3), go2=("damped", 0.15)),
    "clock set by 5 s": cells("tell", "clock", ur5e=ON, go2=ON),
    "states of another robot": cells("interfere", "foreign", fr3=NOTICED, ur5e=NOTICED, go2=DAMPED),
    "second writer": cells("interfere", "second writer", fr3=NOTICED, ur5e=NOTICED, go2=DAMPED),
    "inactive controller": cells("tell", "inactive", fr3=("rests", 0.5), ur5e=("rests", 0.3)),
    "reflex, hot motor": cells("tell", "reflex", fr3=("rests", 0.3), ur5e=("rests", 0.3), go2=("damped", 0.3)),
}  # fmt: skip
