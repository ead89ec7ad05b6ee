"""The report in a real browser, in light and dark mode, on a desktop and a phone."""

import subprocess
from pathlib import Path

import cv2
import numpy as np
import pytest

from robot_rl.report import write_report
from robot_rl.report.page import DARK, LIGHT

CHROMIUM = Path("/usr/bin/chromium")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason="needs chromium: apt-get install chromium")


def browse(page: Path, profile: Path, *flags: str) -> tuple[str, str]:
    """Open a page and run its scripts; return the browser's stdout, and its log with console messages."""
    done = subprocess.run(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
         "--virtual-time-budget=8000", "--enable-logging=stderr", f"--user-data-dir={profile}", *flags, page.as_uri()],
        capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def report(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("browser") / "report.html"
    write_report([demo], out)
    return out


@pytest.mark.parametrize(("width", "colours"), [(1200, LIGHT), (1200, DARK), (400, LIGHT), (400, DARK)])
def test_page_renders_without_errors(report: Path, tmp_path: Path, width: int, colours: dict[str, str]) -> None:
    shot, frame = tmp_path / "shot.png", tmp_path / "frame.html"
    # In a frame, because the browser's window is at least 500 pixels wide.
    style = f"border:0;width:{width}px;height:3000px"
    frame.write_text(f'<body style="margin:0"><iframe src="{report.as_uri()}" style="{style}"></iframe>')
    night = "0" if colours is DARK else "1"
    _, said = browse(frame, tmp_path / "profile", f"--window-size={max(width, 600)},3000", f"--screenshot={shot}",
                     f"--blink-settings=preferredColorScheme={night}")  # fmt: skip
    assert "CONSOLE" not in said, said
    image = cv2.imread(str(shot))
    assert image is not None
    image = image[:, :width]
    paper, line = (np.array([int(colours[name][i : i + 2], 16) for i in (5, 3, 1)]) for name in ("paper", "c1"))
    assert (image[:, :6] == paper).all(), "the left margin is paper"
    assert (image[:, -6:] == paper).all(), "something reaches over the right edge"
    inked = (image != paper).any(-1)
    assert inked.mean() > 0.03 and inked[-600:].any(), "the page is blank"
    assert (image == line).all(-1).sum() > 500, "no curve is drawn"


def test_every_unfolded_chart_is_drawn(report: Path, tmp_path: Path) -> None:
    page, _ = browse(report, tmp_path / "profile", "--dump-dom")
    folded = sum(part.partition("</details>")[0].count('class="plot') for part in page.split("<details>")[1:])
    drawn = page.count('class="plot-container')
    assert drawn == page.count('role="img"') - folded and drawn > 8


def test_page_prints(report: Path, tmp_path: Path) -> None:
    _, said = browse(report, tmp_path / "profile", f"--print-to-pdf={tmp_path / 'report.pdf'}")
    assert "CONSOLE" not in said and (tmp_path / "report.pdf").stat().st_size > 50_000


def test_injected_script_is_refused(report: Path, tmp_path: Path) -> None:
    """The page's content security policy refuses the script, and the console check notices it."""
    page = tmp_path / "bad.html"
    page.write_text(report.read_text().replace("<main>", "<main><script>document.title = 'owned'</script>"))
    shown, said = browse(page, tmp_path / "profile", "--dump-dom")
    assert "CONSOLE" in said and "<title>owned" not in shown
