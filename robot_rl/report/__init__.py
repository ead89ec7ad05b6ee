"""`report.html`: success rates with intervals, learning curves, timing, videos and provenance of runs in one file.

    from robot_rl.report import write_report
    write_report([Path("runs/20261120-demo")], Path("report.html"))

The page is rendered from jinja2 templates; plotly draws its charts. Scripts, videos and images are embedded, so the
page works offline. A run folder may lack any part; the page lists the missing parts.
"""

from robot_rl.report.page import write_report
