"""`execute`: train a run, from its start or from its newest checkpoint."""

import contextlib
import dataclasses
import math
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from nres import multihost
from nres.callbacks import EarlyStopping, SignalStopping
from nres.checkpoint import Checkpoints
from nres.checks import whole_number
from nres.estimators.base import Estimator
from nres.estimators.computing import blank_state
from nres.measured import learned
from nres.progress import Callback, Progress, Reporter, TrainState
from nres.results import TrainResult
from nres.runs.components import Components
from nres.runs.defaults import EVALUATIONS
from nres.runs.folder import Run, RunError, checkpoint_template
from nres.runs.keeper import Keeper
from nres.runs.metrics import (
    DamagedMetricsWarning,
    MetricsWriter,
    read_entries,
    rewind_metrics,
)
from nres.runs.settings import Settings
from nres.system import Theta
from nres.training import callback_list, train
from nres.workers import Steps


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Outcome of executing a run."""

    run: Run
    result: TrainResult
    signal: int | None
    """The signal that stopped the run early, or `None`."""
    resumed_at: int | None = None
    """The update of the checkpoint that the run was resumed from, or `None`."""
    diverged: bool = False
    """True if training stopped because no worker was finite, or `theta` was not."""
    stopped_early: bool = False
    """True if training stopped because evaluations no longer improved, or by `auto_stop`."""
    settled: str | None = None
    """The reason for which `auto_stop` stopped the run: `"converged"`, `"diverged"` or `None`."""

    @property
    def unfinished(self) -> bool:
        """True if the run has made fewer updates than planned, and has not stopped early."""
        settings, state = self.run.settings, self.result.state
        budget = settings.budget_seconds
        if self.stopped_early:
            return False
        return state.update < settings.updates and (budget is None or state.seconds < budget)


def execute(
    run: Run,
    *,
    components: Components | None = None,
    settings: Settings | None = None,
    updates: int | None = None,
    callback: Callback | Sequence[Callback] | None = None,
    progress: bool | Reporter = False,
    tensorboard: bool = False,
    fresh_episodes: bool = False,
) -> Outcome:
    """Execute a run until it has made all of its updates, or stops early.

    A run that has a checkpoint resumes from the newest one, and ends exactly as it would have
    without the interruption. SIGINT (Ctrl-C) and SIGTERM stop the run after the current updates,
    with a checkpoint. A complete run does not change.

    ```python
    settings = nres.runs.resolve("lorenz", "nres", updates=500)
    run = nres.runs.Run.create("runs/first", settings, nres.runs.build(settings))
    outcome = nres.runs.execute(run)
    ```

    Args:
        run: A run that was created or opened.
        components: The components of the run, if they are built already.
        settings: Settings that move the run to other devices or actors, or change when it stops.
        updates: The total number of updates, if it differs from the planned one.
        callback: A function or functions to call during training, as in `nres.train`.
        progress: A live display, as in `nres.train`.
        tensorboard: Also write TensorBoard event files to the folder.
        fresh_episodes: Keep the parameters and the optimizer, but start new episodes; for
            simulators whose states cannot be saved.

    Returns:
        The outcome, with the run and the result of `nres.train`.
    """
    changed = settings is not None and settings != run.settings
    settings = settings or run.settings
    if components is None:
        components = run.build(settings)
    last = settings.updates if updates is None else whole_number("updates", updates)
    folder = run.path / "checkpoints"
    with (
        _closing(components.estimator),
        run.locked(),
        Checkpoints(folder, keep_every=settings.keep_every) as checkpoints,
    ):
        multihost.check_same(settings.to_json() | {"updates": last})
        theta, state = components.theta, None
        metadata: dict[str, Any] = {}
        saved = checkpoints.updates()
        made = saved[-1] if saved else 0
        if last < made:
            raise RunError(
                f"{run.path} has made {made} updates already, but --updates is {last}: give a "
                "larger number."
            )
        budget = settings.budget_seconds
        planned = last
        stopping = _early_stopping(run, settings, made)
        signal_stopping = SignalStopping(components.estimator)
        auto_stop = settings.auto_stop == "on"
        if saved and budget is not None and checkpoints.metadata(made)["seconds"] >= budget:
            last = made
        if saved and (before := checkpoints.metadata(made).get("signal_stopping")):
            signal_stopping.restore(before)

        def has_stopped() -> bool:
            by_itself = auto_stop and signal_stopping.stopped
            here = by_itself or (stopping is not None and stopping.stopped)
            return multihost.agree_on(0, here)[1]

        if has_stopped():
            last = made
        if saved:
            theta, state, metadata = _continued(
                run, components, checkpoints, made, fresh_episodes, last
            )
        if changed or planned != run.settings.updates:
            updates = planned if budget is None else settings.updates
            run = run.changed(**settings.to_json() | {"updates": updates})
        metrics: MetricsWriter | None = None
        measure: Callable[[Theta], dict[str, Any]] = lambda theta: {}  # noqa: E731
        if multihost.is_primary():
            # An evaluation from before the first update is repeated.
            rewind_metrics(run.metrics_file, made or -1, metadata.get("metrics"))
            board = run.path / "tensorboard" if tensorboard else None
            remark = {"fresh_episodes": 1} if saved and fresh_episodes else metadata.get("remark")
            pending = metadata.get("pending")
            metrics = MetricsWriter(
                run.metrics_file, settings.log_every, pending, board, remark, run.tuning_steps
            )
            measure = components.measure
        keeper = Keeper(run, checkpoints, metrics, components.estimator, signal_stopping)
        with keeper, _terminable() as terminated:
            clock = _Clock(settings.budget_seconds)
            callbacks = callback_list(callback)

            def report(progress: Progress) -> bool:
                if clock.evaluation_is_due(progress.state.seconds):
                    measured = measure(multihost.to_local(progress.theta))
                    evals = {name: float(value) for name, value in measured.items()}
                    progress = dataclasses.replace(progress, evals=evals)
                settled = signal_stopping(progress)  # before a checkpoint keeps its state
                keeper.add(progress)
                asked = [bool(function(progress)) for function in callbacks]
                asked.append(auto_stop and settled)
                if stopping is not None:
                    asked.append(stopping(progress))
                return any(asked) or clock.is_over(progress.state.seconds) or terminated()

            with _together(run):
                result = train(
                    components.estimator,
                    components.optimizer,
                    theta,
                    updates=last - made,
                    key=components.key,
                    eval_fn=measure if settings.budget_seconds is None and last > made else None,
                    eval_every=settings.eval_every,
                    callback=report,
                    progress=progress,
                    state=state,
                )
                diverged = keeper.finish(result)
        reasons = {"diverged": diverged}
        early = has_stopped() and result.state.update < planned
        reasons["stopped_early"] = early and not diverged
        if any(bool(run.config.get(why)) != true for why, true in reasons.items()):
            run = run.marked(**reasons)
    which = signal.SIGTERM if terminated() else signal.SIGINT
    return Outcome(
        run,
        result,
        signal=int(which) if terminated() or result.signalled else None,
        resumed_at=made if saved else None,
        settled=signal_stopping.reason if auto_stop else None,
        **reasons,
    )


def _early_stopping(run: Run, settings: Settings, made: int) -> EarlyStopping | None:
    """Return the callback that stops a run early, after the evaluations of the updates made.

    It is `None` if the run does not stop early, and in processes that do not evaluate.
    """
    if settings.stop_after is None or not multihost.is_primary():
        return None
    stopping = EarlyStopping(patience=settings.stop_after)
    if made:  # otherwise the first evaluation is repeated
        with warnings.catch_warnings():
            # Damaged lines are reported when the metrics are rewound.
            warnings.simplefilter("ignore", DamagedMetricsWarning)
            entries = [entry for entry in read_entries(run.metrics_file) if entry["update"] <= made]
        names = (name for entry in entries for name in entry if name.startswith("eval/"))
        name = next(names, None)
        values = [entry[name] for entry in entries if name in entry]
        stopping.replay(math.nan if value is None else value for value in values)
    return stopping


def _continued(
    run: Run,
    components: Components,
    checkpoints: Checkpoints,
    made: int,
    fresh_episodes: bool,
    last: int,
) -> tuple[Theta, TrainState | None, dict[str, Any]]:
    """Restore the parameters, the state and the metadata of the newest checkpoint."""
    estimator = components.estimator
    if not fresh_episodes and estimator.pool.can_fork:
        tree, metadata = checkpoints.restore(made, checkpoint_template(run.settings, components))
        carried = tree["estimator"]
    elif not fresh_episodes and last > made:
        raise RunError(
            f"{run.path} cannot resume its episodes: {run.settings.system} cannot save the states "
            "of its environments. Add --fresh-episodes to keep the parameters and the optimizer "
            "and start new episodes."
        )
    else:
        like = {"theta": components.theta}
        like["optimizer"] = jax.eval_shape(components.optimizer.init, learned(components.theta))
        tree, metadata = checkpoints.restore(made, like, partial=True)
        # With another key, the noise differs from that of the first episodes. A complete run needs
        # no workers at their starting points.
        key = jax.random.fold_in(components.key, made)
        if last > made:
            carried, unlocking = estimator.unlock(tree["theta"], key, update=made)
            both = zip(metadata["steps"], unlocking, strict=True)
            metadata["steps"] = [before + more for before, more in both]
        else:
            carried = blank_state(estimator, tree["theta"], key)
    recorded = metadata.get("settings", {})  # earlier versions did not record them
    for name, value in run.settings.determining().items():
        if recorded.get(name, value) != value:
            raise RunError(
                f"{run.path / 'config.json'} has {name} = {value!r}, but the run was trained with "
                f"{recorded[name]!r}. Undo the change, or start a new run from its parameters: "
                f"nres train ... --from {run.path}"
            )
    try:
        steps, seconds = Steps(*metadata["steps"]), float(metadata["seconds"])
    except (LookupError, TypeError, ValueError) as error:
        raise RunError(f"{checkpoints.folder / str(made)} is damaged: {error!r}.") from error
    return tree["theta"], TrainState(carried, tree["optimizer"], made, steps, seconds), metadata


@contextlib.contextmanager
def _closing(estimator: Estimator) -> Iterator[None]:
    """Close the pool and the placement at the end, with their processes and actors."""
    try:
        yield
    finally:
        estimator.placement.close()
        estimator.pool.close()


@contextlib.contextmanager
def _together(run: Run) -> Iterator[None]:
    """Tell the user how to resume if another process of the run stops responding."""
    try:
        with multihost.watching_peers():
            yield
    except multihost.HostError as error:
        raise multihost.HostError(
            f"{error}. Resume from the newest checkpoint: start all processes again, with "
            f"`nres resume {run.path}`."
        ) from error


class _Clock:
    """Clock of a run with a budget of seconds, which also spaces its evaluations evenly."""

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


@contextlib.contextmanager
def _terminable() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether SIGTERM has arrived."""
    asked = False
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # only the main thread receives signals
        return

    def ask(signum, frame):
        nonlocal asked
        asked = True

    before = signal.signal(signal.SIGTERM, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
