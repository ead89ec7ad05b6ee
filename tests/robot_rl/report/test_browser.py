"""The page in a real browser: it renders by day and by night, on a desk and on a phone, without an error."""

from __future__ import annotations

import subprocess
from pathlib import Path

import cv2
import numpy as np
import pytest

from robot_rl.report import write_report
from robot_rl.report.style import DARK, LIGHT

CHROMIUM = Path("/usr/bin/chromium")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason="needs chromium: apt-get install chromium")


def browse(page: Path, profile: Path, *flags: str) -> str:
    """Open a page; return what the browser wrote, its console included."""
    done = subprocess.run(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
         "--enable-logging=stderr", f"--user-data-dir={profile}", *flags, page.as_uri()],
        capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def report(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("browser") / "report.html"
    write_report([demo], out)
    return out


@pytest.mark.parametrize(("width", "colours"), [(1200, LIGHT), (1200, DARK), (400, LIGHT), (400, DARK)])
def test_renders(report: Path, tmp_path: Path, width: int, colours: dict[str, str]) -> None:
    shot = tmp_path / "shot.png"
    night = "0" if colours is DARK else "1"
    said = browse(report, tmp_path / "profile", f"--window-size={width},3000", f"--screenshot={shot}",
                  f"--blink-settings=preferredColorScheme={night}")  # fmt: skip
    assert "CONSOLE" not in said, said
    image = cv2.imread(str(shot))
    assert image is not None and image.shape == (3000, width, 3)
    paper = np.array([int(colours["paper"][i : i + 2], 16) for i in (5, 3, 1)])
    assert (image[:, :6] == paper).all(), "the left margin is paper"
    assert (image[:, -6:] == paper).all(), "something reaches over the right edge"
    inked = (image != paper).any(-1)
    assert inked.mean() > 0.03 and inked[-600:].any(), "the page is blank"


def test_an_error_would_be_seen(report: Path, tmp_path: Path) -> None:
    """The check above can fail: the page's own policy refuses a script, and the console says so."""
    page = tmp_path / "bad.html"
    page.write_text(report.read_text().replace("<main>", "<main><script>document.title = 'x'</script>"))
    assert "CONSOLE" in browse(page, tmp_path / "profile", f"--screenshot={tmp_path / 'shot.png'}")
