"""The whole page, put together and written at once."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robot_rl.report.figures import plain
from robot_rl.report.folders import RunFolder, read_folders
from robot_rl.report.interventions import interventions_section
from robot_rl.report.journey import Stage, as_json, evaluations_section, journey_section, sentence, stages
from robot_rl.report.learning import learning_section
from robot_rl.report.markup import Html, tag
from robot_rl.report.measures import measures_section
from robot_rl.report.media import videos_section
from robot_rl.report.record import (
    configurations_section,
    dataset_section,
    provenance_section,
    randomization_section,
)
from robot_rl.report.style import STYLE
from robot_rl.report.timing import loop_section, shield_section
from robot_rl.util.errors import UserError
from robot_rl.util.files import replace_file

_MARK = "robot-rl report"
"""The page's generator; a file that does not bear it is never overwritten."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:"
"""Content security policy: the browser itself refuses scripts and every request to elsewhere."""


def write_report(folders: Sequence[Path], out: Path) -> dict[str, Any]:
    """Write the report of run folders as one HTML file that needs nothing else.

    Args:
        folders: run folders, or folders of run folders.
        out: the file; replaced in one step, and only if it is a report already.

    Returns:
        report: path written; stages: each evaluation in order; notes: files that were left out, and why.
    """
    runs = read_folders(folders)
    found = stages(runs)
    page = render(runs, found, _title(folders, runs))
    _write(out, page)
    return {
        "report": str(out),
        "stages": as_json(found),
        "notes": [note for run in runs for note in run.notes],
    }


def render(runs: Sequence[RunFolder], found: Sequence[Stage], title: str) -> str:
    """Return the page as text."""
    sections = [
        ("success", "Success at each stage", journey_section(found)),
        ("videos", "Videos", videos_section(runs)),
        ("learning", "Learning curves", learning_section(runs)),
        ("interventions", "Interventions", interventions_section(runs)),
        ("loop", "Control loop", loop_section(runs)),
        ("shield", "Shield", shield_section(runs)),
        ("measures", "How well", measures_section(runs)),
        ("evaluations", "Evaluations", evaluations_section(runs)),
        ("dataset", "Demonstrations", dataset_section(runs)),
        ("randomization", "Randomization", randomization_section(runs)),
        ("provenance", "Provenance", provenance_section(runs)),
        ("settings", "Settings", configurations_section(runs)),
    ]
    shown = [(name, heading, body) for name, heading, body in sections if body is not None]
    # Only some tasks measure more than success.
    missing = [heading.lower() for name, heading, body in sections if body is None and name != "measures"]
    contents = tag("nav", tag("ul", [tag("li", tag("a", h, href=f"#{n}")) for n, h, _ in shown]), aria_label="Contents")
    header = tag(
        "header", tag("p", _MARK, class_="kicker"), tag("h1", title),
        tag("p", lead, class_="lead") if (lead := sentence(found)) else None,
        tag("p", _origin(runs), class_="small"), contents,
    )  # fmt: skip
    main = [tag("section", tag("h2", heading, id=f"{name}-h"), body, id=name, aria_labelledby=f"{name}-h")
            for name, heading, body in shown]  # fmt: skip
    head = tag(
        "head", tag("meta", charset="utf-8"), tag("meta", name="generator", content=_MARK),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{title} \u00b7 {_MARK}"), tag("style", Html(STYLE)),
    )  # fmt: skip
    body = tag("body", header, tag("main", main), _footer(runs, missing))
    return "<!doctype html>\n" + tag("html", head, body, lang="en") + "\n"


def _title(folders: Sequence[Path], runs: Sequence[RunFolder]) -> str:
    tasks = list(dict.fromkeys(task for run in runs if (task := run.setting("task"))))
    return ", ".join(tasks) if tasks else ", ".join(dict.fromkeys(folder.resolve().name for folder in folders))


def _origin(runs: Sequence[RunFolder]) -> str:
    """When, on what and how many: the facts one looks for first."""
    started = min((run.started for run in runs if run.started), default="")
    machines = dict.fromkeys(
        f"{plain(machine.get('cpu'))}, {plain(machine.get('cores'))} cores"
        for run in runs
        if isinstance(machine := run.provenance.get("machine"), dict)
    )
    parts = [f"{len(runs)} run{'s' * (len(runs) > 1)}", started.replace("T", " ")[:16], *machines]
    return " \u00b7 ".join(part for part in parts if part)


def _footer(runs: Sequence[RunFolder], missing: Sequence[str]) -> Html | None:
    notes = [note for run in runs for note in run.notes]
    if not notes and not missing:
        return None
    return tag(
        "footer",
        tag("p", f"Not recorded in these runs: {', '.join(missing)}.") if missing else None,
        tag("ul", [tag("li", note) for note in notes]) if notes else None,
    )


def _write(out: Path, page: str) -> None:
    if out.is_dir():
        raise UserError(f"{out} is a folder; name a file with --out, such as {out / 'report.html'}")
    try:
        if out.exists():
            with open(out, "rb") as file:
                if _MARK.encode() not in file.read(400):
                    raise UserError(f"{out} exists and is no report of ours; choose another --out")
        replace_file(out, page.encode())
    except OSError as error:
        remedy = "free space or choose" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "choose"
        raise UserError(f"cannot write {out}: {error.strerror}; {remedy} another --out") from error
