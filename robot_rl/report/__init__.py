"""`report.html`: one file that shows what was learned, how certain that is, and how it was made.

    from robot_rl.report import write_report
    write_report([Path("runs/20261120-demo")], Path("report.html"))

The page is made from the jinja2 templates beside this file; plotly draws its charts. Scripts, videos and pictures are
inside the page, so it works offline. A run folder may lack any part; the page leaves it out and says so.
"""

from __future__ import annotations

from robot_rl.report.page import write_report
