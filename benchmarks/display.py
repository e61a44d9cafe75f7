"""Cost of watching a run: wall-clock time with and without the display and the run folder."""

import statistics
import tempfile
import time
from pathlib import Path

from rich.console import Console

import nres
from nres import runs
from nres.display import Display


def run(quick: bool = False, rounds: int = 7) -> dict[str, float]:
    """Measure the seconds of all updates of NRES on Lorenz, as medians over rounds."""
    updates = 200 if quick else 20_000
    # No evaluation or checkpoint falls within the measured time.
    common = {"updates": updates, "eval_every": updates, "checkpoint_seconds": 1e6}
    settings = runs.resolve("lorenz", "nres", **common)
    components = runs.build(settings)

    def train(**options) -> float:
        began = time.perf_counter()
        result = nres.train(
            components.estimator,
            components.optimizer,
            components.theta,
            updates=updates,
            key=components.key,
            **options,
        )
        return time.perf_counter() - began - result.history.setup_time

    def displayed() -> float:
        with (
            Path("/dev/null").open("w") as nowhere,
            Display("nres", Console(file=nowhere, force_terminal=True, width=120)) as display,
        ):
            return train(progress=display)

    def logged() -> float:
        with tempfile.TemporaryDirectory() as folder:
            metrics = runs.metrics.MetricsWriter(Path(folder) / "m", settings.log_every)
            seconds = train(callback=metrics.add)
            metrics.close()
        return seconds

    train()
    times: dict[str, list[float]] = {"plain": [], "display": [], "metrics": []}
    for _ in range(1 if quick else rounds):
        times["plain"].append(train())
        times["display"].append(displayed())
        times["metrics"].append(logged())
    medians = {name: statistics.median(values) for name, values in times.items()}
    return medians | {
        "display_cost": medians["display"] / medians["plain"] - 1,
        "metrics_cost": medians["metrics"] / medians["plain"] - 1,
    }
