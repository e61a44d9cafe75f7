"""The live display of a run: in a terminal, in a notebook, or as lines of text."""

import math
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from nres.progress import Progress as TrainProgress

# Seconds between two drawings, by the thread that trains: another thread would compete with it.
REFRESH_SECONDS = 0.5
# The number of columns from which on a terminal shows more numbers.
WIDE = 120
# Seconds between two lines where nothing can be redrawn.
LINE_SECONDS = 10.0

PHASES = {
    "compiling": "compiling",
    "unlocking": "moving workers to their starting points",
    "evaluating": "evaluating",
    "updating": "",
}


class Display:
    """Show updates, rates, the training loss now and at its best, and the time left.

    A context manager, to be passed to `nres.train` or `nres.runs.execute` as `progress`;
    `progress=True` makes one. A terminal shows a bar, a notebook one line that changes, and
    anything else a line from time to time.

    ```python
    with Display("fitting") as display:
        nres.train(estimator, optimizer, theta, updates=1000, key=key, progress=display)
    ```

    **Arguments:**

    - `title`: a name for the run.
    - `console`: a rich console to draw on; standard output by default.
    - `quiet`: whether to show nothing.
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
            TextColumn("{task.fields[count]}"),
            TextColumn("{task.fields[what]}"),
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
        # Evaluations come often and are mostly short: once there are numbers, those stay.
        if text and not (name == "evaluating" and (self.line or not self.is_bar)):
            self._draw(0, None, "", text)

    def __call__(self, progress: TrainProgress) -> None:
        state, loss = progress.state, progress.rows["loss"]
        if len(loss):
            self.best = min(self.best, float(loss.min()))
        now = time.monotonic()
        over = state.update == progress.updates
        redraws = self.is_bar or self.console.is_jupyter
        if now - self.drawn < (REFRESH_SECONDS if redraws else LINE_SECONDS) and not over:
            return
        seconds, update, steps = self.mark
        passed = max(now - seconds, 1e-9) if self.drawn else math.inf
        rate = (state.update - update) / passed
        wide = not self.is_bar or self.console.width >= WIDE
        parts = []
        if rate > 0 and wide:
            steps_rate = (state.steps.total - steps) / passed
            parts.append(f"{_rate(rate)} updates/s, {steps_rate:.1e} steps/s")
        elif rate > 0:
            parts.append(f"{_rate(rate)}/s")
        if len(loss) and wide:
            parts.append(f"training loss {loss[-1]:.4g}, best {self.best:.4g}")
        elif len(loss):
            parts.append(f"loss {loss[-1]:.3g}, best {self.best:.3g}")
        if rate > 0:
            parts.append(f"{_clock((progress.updates - state.update) / rate)} left")
        self.drawn, self.mark = now, (now, state.update, state.steps.total)
        count = f"{state.update:,}/{progress.updates:,}"
        self.line = "  ".join(parts)
        self._draw(state.update, progress.updates, count, self.line)

    def _draw(self, completed: int, total: int | None, count: str, what: str) -> None:
        if self.quiet:
            return
        if self.is_bar:
            fields: dict[str, Any] = {"what": what} | ({"count": count} if count else {})
            if self.task is None:
                fields = {"count": ""} | fields
                self.task = self.bar.add_task(self.title, total=total, **fields)
            if total is None:
                self.bar.update(self.task, **fields)
            else:
                self.bar.update(self.task, total=total, completed=completed, **fields)
            self.bar.refresh()
            return
        line = "  ".join(filter(None, (f"{self.title}:", count, what)))
        if not self.console.is_jupyter:
            self.console.print(Text(line), soft_wrap=True)
            return
        from IPython.display import display  # type: ignore[import-not-found]  # there, since this is a notebook

        if self.notebook is None:
            self.notebook = display({"text/plain": line}, raw=True, display_id=True)
        else:
            self.notebook.update({"text/plain": line}, raw=True)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
