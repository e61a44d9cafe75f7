"""Runs and pages for the tests of the report."""

import json
import re

import numpy as np
from typer.testing import CliRunner

from nres import report, runs
from nres.cli import app

# Names and notes of runs are text, whatever they contain.
HOSTILE = "<img src=x onerror=window.hacked=1>"
NOTES = "</script><script>window.hacked = 1</script> & <b>bold</b>"


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def write_run(folder, method="nres", seed=0, points=50, loss=lambda u: 1000 / (1 + u), **given):
    """Write the folder of a run that is evaluated to `loss(update)` every five updates."""
    settings = runs.resolve("lorenz", method, updates=points, seed=seed, **given)
    folder.mkdir(parents=True)
    environment = {"device": {"backend": "cpu", "kind": "cpu"}, "versions": {"jax": "1"}}
    about = {"settings": settings.to_json(), "created": "2026-01-01", "git": None}
    (folder / "config.json").write_text(json.dumps(about | environment))
    sequential = 2000 if method == "fulles" else 100
    rng = np.random.default_rng(seed)
    with (folder / "metrics.jsonl").open("w") as file:
        for u in range(points):
            row = {"update": u, "total_steps": 400 * u, "sequential_steps": sequential * u}
            row |= {"seconds": u / 7, "loss": 100 / (1 + u) + rng.random(), "grad_norm": None}
            if u % 5 == 0:
                row |= {"eval/test_loss": loss(u), "eval/ln_r": 3.0}
            file.write(json.dumps(row | {"nonfinite": 0}) + "\n")
    return folder


def written(folder, **options):
    """Write a report of the runs in a folder, and return the data that its page contains."""
    report.write_report(report.find_runs([folder]), folder / "report.html", **options)
    text = (folder / "report.html").read_text()
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])


def write_page(folder):
    """Write three runs, one of them with hostile names and notes, and a report of them."""
    write_run(folder / "nres-0")
    write_run(folder / "nres-1", seed=1, loss=lambda u: 3000 / (1 + u))
    write_run(folder / HOSTILE, "tbptt", loss=lambda u: 2000 / (1 + u))
    (folder / HOSTILE / "notes.txt").write_text(NOTES)
    # A picture of one pixel.
    gif = bytes.fromhex("47494638396101000100800000ffffff0000002c00000000010001000002024401003b")
    (folder / "nres-0/policy.gif").write_bytes(gif)
    result = invoke("report", folder, "-o", folder / "report.html", "--title", HOSTILE)
    assert result.exit_code == 0, result.output
    return folder / "report.html"
