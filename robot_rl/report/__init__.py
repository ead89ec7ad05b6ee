"""`report.html`: one file that tells what was learned, how sure that is, and how it was made.

    from robot_rl.report import write_report
    write_report([Path("runs/20261120-demo")], Path("report.html"))

The page is HTML, CSS and SVG written by the functions of this package: no script, no request to anywhere, videos and
pictures inside. A run folder may lack any part; the page leaves it out and says so.
"""

from __future__ import annotations

from robot_rl.report.page import write_report
