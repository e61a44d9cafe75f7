"""Self-contained HTML page that compares runs."""

from nres.report.page import find_runs as find_runs
from nres.report.page import write_report as write_report
