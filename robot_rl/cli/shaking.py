"""`robot-rl doctor --log`: why a robot shakes although its policy works in simulation."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from robot_rl.cli.console import console, print_table, printer, show


def diagnose(run: Path, json: bool, mjcf: str = "") -> int:
    """Compare a run with its replay, and print the likely causes with their remedies; return 1 if there are any."""
    from robot_rl.diagnosis import LONGEST, find, measure, read_motion, replayable

    motion = read_motion(run)
    measures = measure(motion, mjcf)
    causes, notes = find(motion, measures), []
    seconds = min(motion.time[-1], LONGEST)
    if not replayable(motion):
        notes.append(
            f"not replayed, as only arms that take joint positions are ({motion.facts['robot']}: "
            f"{motion.facts['command']}): rates, noise and orientation were judged"
        )
    elif measures.fitted is None:
        notes.append("no joint moved enough to tell delay and gains: record a run with motion")
    if json:
        found = {"ok": not causes, "causes": [asdict(cause) for cause in causes], "notes": notes}
        show(found | {"measures": asdict(measures), "seconds": round(float(seconds), 3)}, True)
        return int(bool(causes))
    if causes:
        rows = [(cause.name, cause.detail, cause.remedy) for cause in causes]
        head = ("cause", "found", "remedy")
        print_table(f"{run}, the likeliest cause first", head, rows, left=head)
    else:
        printer().print(f"{run}: nothing found in {seconds:.0f} s of commands and states", soft_wrap=True)
    for note in notes:
        console.print(note, soft_wrap=True)
    return int(bool(causes))
