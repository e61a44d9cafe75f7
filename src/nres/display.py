"""The live display of a run: in a terminal, in a notebook, or as lines of text."""

import math
import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from nres import diagnostics
from nres.progress import Progress as TrainProgress

# Seconds between two refreshes. The training thread draws: another thread would compete with it.
REFRESH_SECONDS = 0.5
# Seconds between two lines of text where nothing can be redrawn.
LINE_SECONDS = 10.0
# The number of columns that the bar and the title need.
BAR_WIDTH, TITLE_WIDTH = 10, 20

PHASES = {
    "compiling": "compiling",
    "unlocking": "moving workers to their starting points",
    "evaluating": "evaluating",
    "updating": "",
}


class Display:
    """Live display of the updates, their rate, the training loss and the remaining time.

    With pairs, it also shows the signal-to-noise ratio of the latest updates.

    It is a context manager. Pass it to `nres.train` or `nres.runs.execute` as `progress`;
    `progress=True` makes one. A terminal shows a bar, a notebook shows one line that changes, and
    any other output gets a line every ten seconds.

    ```python
    with Display("fitting") as display:
        nres.train(estimator, optimizer, theta, updates=1000, key=key, progress=display)
    ```

    Args:
        title: A name for the run.
        console: A rich console to draw on; by default standard output.
        quiet: Show nothing.
    """

    def __init__(self, title: str, console: Console | None = None, quiet: bool = False):
        self.title, self.quiet = title, quiet
        self.console = console or Console()
        self.best, self.line = math.inf, ""
        self.drawn, self.mark = 0.0, (0.0, 0, 0)
        self.is_bar = self.console.is_terminal and not self.console.is_jupyter and not quiet
        self.notebook: Any = None
        self.task: TaskID | None = None
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[what]}", markup=False),
            console=self.console,
            auto_refresh=False,
            disable=not self.is_bar,
        )

    def __enter__(self) -> "Display":
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.task is not None:
            self.bar.refresh()
        self.bar.stop()

    def phase(self, name: str) -> None:
        """Show the phase that begins."""
        text = PHASES.get(name, name)
        # Evaluations are frequent and mostly short, so the numbers stay on the screen meanwhile.
        if text and not (name == "evaluating" and (self.line or not self.is_bar)):
            self._draw(0, None, [text])

    def __call__(self, progress: TrainProgress) -> None:
        state, loss = progress.state, progress.rows["loss"]
        if np.isfinite(loss).any():
            self.best = min(self.best, float(loss[np.isfinite(loss)].min()))
        now = time.monotonic()
        over = state.update == progress.updates
        redraws = self.is_bar or self.console.is_jupyter
        if now - self.drawn < (REFRESH_SECONDS if redraws else LINE_SECONDS) and not over:
            return
        seconds, update, steps = self.mark
        passed = max(now - seconds, 1e-9) if self.drawn else math.inf
        rate = (state.update - update) / passed
        count = f"{state.update:,}/{progress.updates:,}"
        left = f"{_clock((progress.updates - state.update) / rate)} left" if rate > 0 else ""
        speed = f"{_rate(rate)}/s" if rate > 0 else ""
        steps_rate = (state.steps.total - steps) / passed
        speeds = f"{_rate(rate)} updates/s, {steps_rate:.1e} steps/s" if rate > 0 else ""
        losses = brief = last = signal = ""
        if len(loss):
            snr = diagnostics.summarised(progress.rows).get("snr")
            signal = "" if snr is None else f"snr {snr:.2g}"
            losses = f"training loss {loss[-1]:.4g}, best {self.best:.4g}"
            brief = f"loss {loss[-1]:.3g}, best {self.best:.3g}"
            last = f"loss {loss[-1]:.3g}"
        self.drawn, self.mark = now, (now, state.update, state.steps.total)
        # From the most to the least detailed: a terminal shows the first that fits.
        variants = [
            (count, speeds, losses, signal, left),
            (count, speed, brief, signal, left),
            (count, speed, brief, left),
            (count, brief, left),
            (count, last, left),
            (count, left),
        ]
        lines = ["  ".join(filter(None, parts)) for parts in variants]
        self.line = lines[0]
        self._draw(state.update, progress.updates, lines)

    def _draw(self, completed: int, total: int | None, lines: list[str]) -> None:
        """Draw the first of the lines that fits beside the title and the bar."""
        if self.quiet:
            return
        if self.is_bar:
            # Two spaces separate the title, the bar and the line.
            room = self.console.width - BAR_WIDTH - 2
            needed = min(len(self.title), TITLE_WIDTH)
            what = next((line for line in lines if len(line) + needed <= room), lines[-1])
            title = _shortened(self.title, max(needed, room - len(what)))
            if self.task is None:
                self.task = self.bar.add_task(title, total=total, what=what)
            elif total is None:
                self.bar.update(self.task, description=title, what=what)
            if total is not None:
                self.bar.update(
                    self.task, total=total, completed=completed, description=title, what=what
                )
            self.bar.refresh()
            return
        line = f"{self.title}:  {lines[0]}"
        if not self.console.is_jupyter:
            self.console.print(Text(line), soft_wrap=True)
            return
        # A notebook always has IPython.
        from IPython.display import display  # type: ignore[import-not-found]

        if self.notebook is None:
            self.notebook = display({"text/plain": line}, raw=True, display_id=True)
        else:
            self.notebook.update({"text/plain": line}, raw=True)


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
