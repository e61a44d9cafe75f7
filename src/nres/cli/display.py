"""The live display of a run."""

import math
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from nres.train import Progress as TrainProgress

# Redrawn at most so often, by the thread that trains: a thread of its own would compete with it.
REFRESH_SECONDS = 0.5


class Display:
    """A progress bar with rates, the loss now and at its best, and the time left.

    A context manager, to be passed to `nres.train` or `nres.runs.execute` as callback. It is
    silent where the console is not a terminal.

    **Arguments:**

    - `console`: where to draw.
    - `title`: what is being run.
    - `quiet`: whether to be silent anyway.
    """

    def __init__(self, console: Console, title: str, quiet: bool = False):
        self.silent = quiet or not console.is_terminal
        self.console, self.title = console, title
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,}/{task.total:,}"),
            TextColumn("{task.fields[rates]}"),
            TextColumn("{task.fields[loss]}"),
            TextColumn("{task.fields[left]}"),
            console=console,
            auto_refresh=False,
            disable=self.silent,
        )
        self.task: TaskID | None = None
        self.best = math.inf
        self.drawn, self.mark = 0.0, (0.0, 0, 0)

    def __enter__(self) -> "Display":
        if not self.silent:
            self.console.print(f"{self.title}: compiling, the first update follows in seconds.")
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.task is not None:
            self.bar.refresh()
        self.bar.stop()

    def __call__(self, progress: TrainProgress) -> None:
        if self.silent:
            return
        state, loss = progress.state, progress.rows["loss"]
        if len(loss):
            self.best = min(self.best, float(loss.min()))
        now = time.monotonic()
        over = state.update == progress.updates
        if now - self.drawn < REFRESH_SECONDS and not over:
            return
        seconds, update, steps = self.mark
        passed = max(now - seconds, 1e-9) if self.drawn else math.inf
        rate = (state.update - update) / passed
        fields: dict[str, Any] = {"rates": "", "loss": "", "left": ""}
        if rate > 0:
            steps_rate = (state.steps.total - steps) / passed
            fields["rates"] = f"{rate:,.0f} updates/s, {steps_rate:.1e} steps/s"
            fields["left"] = f"{_clock((progress.updates - state.update) / rate)} left"
        if len(loss):
            fields["loss"] = f"loss {loss[-1]:.4g}, best {self.best:.4g}"
        self.drawn, self.mark = now, (now, state.update, state.steps.total)
        if self.task is None:
            self.task = self.bar.add_task(self.title, total=progress.updates, **fields)
        self.bar.update(self.task, completed=state.update, **fields)
        self.bar.refresh()


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
