"""`robot-rl evaluate --grid`: where in its range a parameter costs success."""

import json
from pathlib import Path
from typing import Any

import pytest

Run = Any
GRID = ("--episodes", "8", "--num-envs", "8", "--skill", "STEADY")


def test_the_worst_cell_is_found_and_drawn(run: Run, tmp_path: Path) -> None:
    wide = ("--range", "cube.bias_x=0:0.08", "--range", "cube.mass=0.05:0.1", "--cells", "2", "--out", "g.json")
    code, out, _ = run("evaluate", "expert:panda-lift", *GRID, "--grid", "cube.mass", "cube.bias_x", *wide)
    assert code == 0 and "worst cell: success 0" in out
    found = json.loads((tmp_path / "g.json").read_text())
    rates = {tuple(cell["values"].values()): cell["success"] for cell in found["cells"]}
    assert set(rates) == {(m, b) for m in (0.05, 0.1) for b in (0.0, 0.08)}
    assert all(rate >= 0.75 if bias == 0 else rate == 0 for (_, bias), rate in rates.items())
    assert found["worst"]["values"]["cube.bias_x"] == 0.08 and found["columns"] == ["0", "0.08"]
    page = (tmp_path / "g.html").read_text()
    assert "cube.bias_x" in page and "cube.mass" in page


def test_each_parameter_by_itself(run: Run) -> None:
    code, out, _ = run("evaluate", "expert:testbed:swing-varied", "--grid", "randomization", "--cells", "3",
                       "--episodes", "4", "--num-envs", "4", "--json")  # fmt: skip
    found = json.loads(out)
    assert code == 0 and found["rows"] == ["pendulum.mass", "pendulum.damping"]
    assert found["columns"] == ["0%", "50%", "100%"] and len(found["cells"]) == 6
    assert [list(cell["values"]) for cell in found["cells"]] == [["pendulum.mass"]] * 3 + [["pendulum.damping"]] * 3
    assert found["worst"] == min(found["cells"], key=lambda cell: cell["return"]["mean"])


@pytest.mark.parametrize(("options", "words"), [
    (("expert:panda-lift", "--grid", "cube.colour", "cube.mass"), "cube.colour"),
    (("expert:panda-lift", "--grid", "cube.mass"), "two names"),
    (("expert:testbed:reach", "--grid", "randomization"), "nothing is randomized"),
    (("expert:panda-lift", "--grid", "randomization", "--video", "v.mp4"), "leave out --grid or --video"),
    (("expert:panda-lift", "zero:panda-lift", "--grid", "randomization"), "one policy"),
])  # fmt: skip
def test_what_cannot_be_measured_is_refused(run: Run, options: tuple[str, ...], words: str) -> None:
    code, _, err = run("evaluate", *options, *GRID)
    assert code == 2 and words in err
