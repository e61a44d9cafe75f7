"""`python -m nres_paper`: the command `nres reproduce`, whether or not it is installed."""

from nres_paper.command import app

app()
