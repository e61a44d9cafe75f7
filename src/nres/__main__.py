"""Entry point of `python -m nres`."""

from nres.cli import app

app()
