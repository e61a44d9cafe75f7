"""`execute`: carry out a run, from its beginning or from its newest checkpoint."""

import contextlib
import dataclasses
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from nres import hosts
from nres.checkpoint import CheckpointError, Checkpoints
from nres.estimators.base import Estimator
from nres.estimators.es import EvolutionStrategy
from nres.estimators.remote import portable
from nres.estimators.values import Steps
from nres.pools.base import Pool
from nres.pools.ray import RayPool
from nres.runs.folder import Run, RunError, checkpoint_template
from nres.runs.metrics import MetricsWriter, cut_metrics
from nres.runs.settings import Problem
from nres.system import Theta
from nres.train import Progress, TrainResult, TrainState, train

# How often a run with a budget of seconds is evaluated.
EVALUATIONS = 40


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How the execution of a run ended."""

    run: Run
    result: TrainResult
    signal: int | None
    """The signal that asked for an early end, if one did."""

    @property
    def unfinished(self) -> bool:
        """Whether updates are left to be made."""
        return self.result.state.update < self.run.settings.updates


def execute(
    run: Run,
    *,
    problem: Problem | None = None,
    updates: int | None = None,
    callback: Callable[[Progress], Any] | None = None,
    tensorboard: bool = False,
) -> Outcome:
    """Make the updates of a run that are still to be made.

    Goes on from the newest checkpoint, if there is one. SIGINT (Ctrl-C) and SIGTERM end the run
    after the updates under way, with a checkpoint to go on from; a run that was killed goes on
    from its newest one, and ends as if nothing had happened.

    ```python
    settings = nres.runs.resolve("lorenz", "nres", updates=500)
    run = nres.runs.Run.create("runs/first", settings, nres.runs.build(settings))
    outcome = nres.runs.execute(run)
    ```

    **Arguments:**

    - `run`: a run, created or opened.
    - `problem`: what its settings describe, if it was built already.
    - `updates`: how many updates to make in all, if not as many as were planned.
    - `callback`: called as that of `nres.train`.
    - `tensorboard`: whether to write TensorBoard event files into the folder, too.
    """
    settings, problem = run.settings, problem or run.spread()
    last = settings.updates if updates is None else updates
    folder = run.path / "checkpoints"
    with (
        _closing(problem.estimator.pool),
        run.locked(),
        Checkpoints(folder, keep_every=settings.keep_every) as checkpoints,
    ):
        hosts.check_same(settings.to_json() | {"updates": last})
        theta, state, pending = problem.theta, None, None
        saved = checkpoints.updates()
        if last <= (saved[-1] if saved else 0):
            raise RunError(
                f"{run.path} has made {saved[-1] if saved else 0} updates, and {last} are asked "
                "for: there is nothing to do. `--updates` asks for more."
            )
        budget = settings.budget_seconds
        if saved and budget is not None and checkpoints.facts(saved[-1])["seconds"] >= budget:
            raise RunError(f"{run.path} is complete: its {budget:g} seconds are spent.")
        if saved:
            if not problem.estimator.pool.can_fork:
                raise RunError(
                    f"{run.path} cannot be continued: {settings.system} offers no snapshots of its "
                    "environments, so the episodes under way are lost. Begin a new run."
                )
            tree, facts = checkpoints.restore(saved[-1], checkpoint_template(run.problem))
            theta, pending = tree["theta"], facts["pending"]
            steps = Steps(*facts["steps"])
            state = TrainState(
                tree["estimator"], tree["optimizer"], facts["update"], steps, facts["seconds"]
            )
        done = 0 if state is None else state.update
        if last != settings.updates:
            run = run.changed(updates=last)
        metrics: MetricsWriter | None = None
        measure: Callable[[Theta], dict[str, Any]] = lambda theta: {}  # noqa: E731
        if hosts.first():
            # Before the first update there may be an evaluation already, which is made again.
            cut_metrics(run.metrics_file, done or -1)
            board = run.path / "tensorboard" if tensorboard else None
            metrics = MetricsWriter(run.metrics_file, settings.log_every, pending, board)
            measure = problem.measure
        keeper = _Keeper(run, checkpoints, metrics, problem.estimator)
        with keeper, _terminable() as terminated:
            clock = _Clock(settings.budget_seconds)

            def report(progress: Progress) -> bool:
                if clock.evaluation_is_due(progress.state.seconds):
                    measured = measure(hosts.own(progress.theta))
                    evals = {name: float(value) for name, value in measured.items()}
                    progress = dataclasses.replace(progress, evals=evals)
                keeper.add(progress)
                asked = callback is not None and bool(callback(progress))
                return asked or clock.is_over(progress.state.seconds) or terminated()

            with _together(run):
                result = train(
                    problem.estimator,
                    problem.optimizer,
                    theta,
                    updates=last - done,
                    key=problem.key,
                    eval_fn=measure if settings.budget_seconds is None else None,
                    eval_every=settings.eval_every,
                    callback=report,
                    state=state,
                )
                keeper.save(result.theta, result.state)
            keeper.wait()
    which = signal.SIGTERM if terminated() else signal.SIGINT
    return Outcome(run, result, int(which) if terminated() or result.signalled else None)


@contextlib.contextmanager
def _closing(pool: Pool) -> Iterator[None]:
    """Let a pool that has processes or actors end them, whatever happens."""
    try:
        yield
    finally:
        close = getattr(pool, "close", None)
        if close is not None:
            close()


@contextlib.contextmanager
def _together(run: Run) -> Iterator[None]:
    """Say what to do if another process of the run does not answer any more."""
    try:
        with hosts.together():
            yield
    except hosts.HostError as error:
        raise hosts.HostError(
            f"{error}. Start all of them again, with `nres resume {run.path}`: they go on from the "
            "newest checkpoint."
        ) from error


class _Clock:
    """Ends a run that has a budget of seconds, and spreads its evaluations over it."""

    def __init__(self, budget: float | None):
        self.budget = budget
        self.next_evaluation = 0.0

    def is_over(self, seconds: float) -> bool:
        return self.budget is not None and seconds >= self.budget

    def evaluation_is_due(self, seconds: float) -> bool:
        if self.budget is None or (seconds < self.next_evaluation and not self.is_over(seconds)):
            return False
        self.next_evaluation = seconds + self.budget / EVALUATIONS
        return True


class _Keeper:
    """Writes metrics and checkpoints, the first process at least: others help it to checkpoint."""

    def __init__(
        self,
        run: Run,
        checkpoints: Checkpoints,
        metrics: MetricsWriter | None,
        estimator: Estimator,
    ):
        self.run, self.checkpoints = run, checkpoints
        self.metrics, self.estimator = metrics, estimator
        self.saved_update, self.saved_time = -1, time.monotonic()

    def __enter__(self) -> "_Keeper":
        return self

    def __exit__(self, kind: type | None, *exception: object) -> None:
        try:
            if self.metrics is not None:
                self.metrics.close()
        except OSError:
            if kind is None:  # else what happened first is what matters
                raise

    def add(self, progress: Progress) -> None:
        if self.metrics is not None:
            with self._explaining():
                self.metrics.add(progress)
        settings, update = self.run.settings, progress.state.update
        every = settings.checkpoint_every
        due = time.monotonic() - self.saved_time >= settings.checkpoint_seconds
        if every is not None:
            due = due or update // every > self.saved_update // every
        kept = settings.keep_every is not None and update % settings.keep_every == 0
        due = due or kept or self.saved_update < 0
        if hosts.agree(int(due), False)[0]:  # as the clock of the first says
            self.save(progress.theta, progress.state)

    def save(self, theta: Any, state: TrainState) -> None:
        if state.update == self.saved_update:
            return
        if self.metrics is not None:
            with self._explaining():
                self.metrics.sync()
        carried = state.estimator
        if isinstance(self.estimator, EvolutionStrategy) and isinstance(
            self.estimator.pool, RayPool
        ):
            carried = portable(self.estimator, theta, carried)
        tree = {"theta": theta, "optimizer": state.optimizer, "estimator": carried}
        facts = {
            "update": state.update,
            "steps": list(state.steps),
            "seconds": state.seconds,
            "pending": None if self.metrics is None else self.metrics.pending,
        }
        with self._explaining():
            self.checkpoints.save(state.update, tree, facts)
        self.saved_update, self.saved_time = state.update, time.monotonic()

    def wait(self) -> None:
        with self._explaining():
            self.checkpoints.wait()

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except (OSError, CheckpointError) as error:
            raise RunError(
                f"{self.run.path} cannot be written to: {error}. The run can be continued from its "
                f"newest checkpoint: nres resume {self.run.path}"
            ) from error


@contextlib.contextmanager
def _terminable() -> Iterator[Callable[[], bool]]:
    """Let SIGTERM ask for an orderly end."""
    asked = False
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # signals reach the main thread alone
        return

    def ask(signum, frame):
        nonlocal asked
        asked = True

    before = signal.signal(signal.SIGTERM, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
