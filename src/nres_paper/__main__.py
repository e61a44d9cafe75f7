"""Run `nres reproduce` as `python -m nres_paper`, even if the command is not installed."""

from nres_paper.command import app

app()
