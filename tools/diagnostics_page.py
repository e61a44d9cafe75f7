"""Fill in the measured numbers of docs/diagnostics.md from the saved example."""

from results import load


def diagnosed() -> str:
    """Show what examples/diagnose.py printed."""
    (output,) = load("examples/diagnose.json")["outputs"]
    return f"\n```text\n{output['text'].rstrip()}\n```\n"


PARTS = (diagnosed,)
