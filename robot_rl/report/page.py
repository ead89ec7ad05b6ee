"""The report page: rendered from templates, with embedded videos, and written atomically."""

import base64
import errno
import gzip
import hashlib
import io
import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from robot_rl.report import record, results
from robot_rl.report.charts import Block
from robot_rl.report.figures import plain
from robot_rl.report.folders import RunFolder, read_folders
from robot_rl.report.training import interventions_section, learning_section
from robot_rl.util.errors import ConfigError, UserError
from robot_rl.util.files import replace_file

_MARK = "robot-rl report"
"""Generator name in the page; files without this name are never overwritten."""
_UNSAFE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
"""Characters that are invalid in HTML or UTF-8: controls, lone surrogates, non-characters."""
Section = tuple[str, str, list[Block]]
"""Section of the page: anchor, heading and blocks."""
LIGHT = {
    "paper": "#fcfbf9", "raised": "#f4f2ee", "ink": "#1d1c1a", "soft": "#625e57", "rule": "#dfdbd3",
    "c1": "#1f5aa8", "c2": "#b0480f", "c3": "#2c7a57", "c4": "#8a3d8f", "c5": "#8a6a00", "c6": "#5b5f66",
}  # fmt: skip
DARK = {
    "paper": "#14161a", "raised": "#1d2026", "ink": "#e9e7e2", "soft": "#a6a39c", "rule": "#333840",
    "c1": "#82b4f5", "c2": "#f2a36b", "c3": "#7fcfa5", "c4": "#d79be0", "c5": "#e2c35a", "c6": "#b3b7bf",
}  # fmt: skip
"""Colours of page and charts in dark mode; LIGHT has those of light mode. Text has a contrast of at least 4.5."""


def write_report(folders: Sequence[Path], out: Path) -> dict[str, Any]:
    """Write the report of run folders as one self-contained HTML file.

    Args:
        folders: run folders, or folders of run folders.
        out: HTML file; an existing file is replaced atomically, and only if it is a report.

    Returns:
        Dict with report (path written), stages (evaluations in order) and notes (files left out, with reasons).
    """
    runs = read_folders(folders)
    found = results.stages(runs)
    tasks = dict.fromkeys(task for run in runs if (task := run.setting("task")))
    page = render(runs, found, ", ".join(tasks or dict.fromkeys(folder.resolve().name for folder in folders)))
    write_page(out, page)
    notes = [note for run in runs for note in run.notes]
    return {"report": str(out), "stages": [asdict(stage) for stage in found], "notes": notes}


def render(runs: Sequence[RunFolder], found: Sequence[results.Stage], title: str) -> str:
    """Return the report page of runs, with the stages `found` in them, as HTML text."""
    sections = [
        ("success", "Success at each stage", results.success_section(found)),
        ("instructions", "Success of each instruction", results.groups_section(runs, "by_instruction", "Instruction")),
        ("ground", "Success by kind and level of the ground", results.groups_section(runs, "by_ground", "Ground")),
        ("videos", "Videos", videos_section(runs)),
        ("learning", "Learning curves", learning_section(runs)),
        ("interventions", "Interventions", interventions_section(runs)),
        ("loop", "Control loop", record.loop_section(runs)),
        ("shield", "Shield", record.shield_section(runs)),
        ("measures", "How well", results.measures_section(runs)),
        ("evaluations", "Evaluations", results.evaluations_section(runs)),
        ("dataset", "Demonstrations", record.dataset_section(runs)),
        ("randomization", "Randomization", record.randomization_section(runs)),
        ("provenance", "Provenance", record.provenance_section(runs)),
        ("settings", "Settings", record.settings_section(runs)),
    ]
    optional = ("measures", "instructions", "ground")  # some tasks measure only success or have no instructions
    missing = [heading.lower() for name, heading, blocks in sections if not blocks and name not in optional]
    return assemble(title, results.sentence(found), runs, sections, missing)


def assemble(
    title: str, lead: str, runs: Sequence[RunFolder], sections: Sequence[Section], missing: Sequence[str] = ()
) -> str:
    """Return a page of sections as HTML text; sections without blocks are left out."""
    started = min((run.started for run in runs if run.started), default="")
    machines = dict.fromkeys(
        f"{plain(machine.get('cpu'))}, {plain(machine.get('cores'))} cores"
        for run in runs
        if isinstance(machine := run.provenance.get("machine"), dict)
    )
    origin = [f"{len(runs)} run{'s' * (len(runs) > 1)}", started.replace("T", " ")[:16], *machines]
    templates, plotly, hashes = _assets()
    page = templates.get_template("page.html").render(
        mark=_MARK, title=title, lead=lead, origin=[part for part in origin if part],
        sections=[section for section in sections if section[2]], missing=missing,
        notes=[note for run in runs for note in run.notes], light=LIGHT, dark=DARK, plotly=plotly, hashes=hashes,
    )  # fmt: skip
    return _UNSAFE.sub("\ufffd", page)


@cache
def _assets() -> tuple[Any, str, str]:
    """Return the templates, plotly.js (gzip, base64) and the hashes of the scripts allowed to run in the page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    templates = Environment(
        loader=PackageLoader("robot_rl.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=StrictUndefined,
    )  # fmt: skip
    plotly = get_plotlyjs()
    scripts = (plotly, templates.get_template("charts.js").render())
    hashes = " ".join(f"'sha256-{base64_text(hashlib.sha256(script.encode()).digest())}'" for script in scripts)
    return templates, base64_text(gzip.compress(plotly.encode(), mtime=0)), hashes


def write_page(out: Path, page: str) -> None:
    """Write a page atomically. Raises ConfigError if `out` is a folder or a file that is not a report."""
    if out.is_dir():
        raise ConfigError(f"{out} is a folder; name a file with --out, such as {out / 'report.html'}")
    try:
        if out.exists():
            with open(out, "rb") as file:
                if _MARK.encode() not in file.read(400):
                    raise ConfigError(f"{out} exists and was not written by robot-rl report; choose another --out")
        replace_file(out, page.encode())
    except OSError as error:
        remedy = "free space or choose" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "choose"
        raise UserError(f"cannot write {out}: {error.strerror}; {remedy} another --out") from error


LARGEST = 32 * 2**20
"""Size limit of an embedded video, bytes; larger videos get a note. Phones fail on pages of about 100 MB."""


def videos_section(runs: Sequence[RunFolder]) -> list[Block]:
    """Return the videos of all runs with captions; add a note to the run for each video left out."""
    videos: list[dict[str, Any]] = []
    for run in runs:
        for path in run.videos:
            caption = run.captions.get(path.name)
            shown = caption if isinstance(caption, str) and caption.strip() else path.stem.replace("_", " ")
            try:
                videos.append({"run": run.name, "caption": shown, **_embedded(path)})
            except ValueError as error:
                run.notes.append(f"{path} {error} and was left out")
    return [Block("videos", {"videos": videos})] if videos else []


def _embedded(path: Path) -> dict[str, Any]:
    """Return a video and its poster as base64, with width and height. Raises ValueError with the reason on failure."""
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise ValueError(f"has {size / 2**20:.0f} MiB, over {LARGEST // 2**20},")
        data = path.read_bytes()
    except OSError:
        raise ValueError("cannot be read") from None
    image, width, height = poster(data)
    return {"mp4": base64_text(data), "jpeg": base64_text(image), "width": width, "height": height}


def poster(data: bytes) -> tuple[bytes, int, int]:
    """Return a frame from the middle of a video as JPEG, with width and height. Raises ValueError without a frame."""
    import av
    import cv2

    try:
        with av.open(io.BytesIO(data), "r") as container:
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1
            if stream.duration:
                container.seek(stream.duration // 2, stream=stream)
            image = next(container.decode(stream)).to_ndarray(format="bgr24")
    except (OSError, ValueError, IndexError, StopIteration, MemoryError):  # av.FFmpegError is an OSError or ValueError
        raise ValueError("cannot be decoded as a video") from None
    return cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 85])[1].tobytes(), image.shape[1], image.shape[0]


def base64_text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
