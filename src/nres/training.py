"""`train`: minimise a loss with an estimator and an optax optimizer."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from nres.checks import as_key, whole_number
from nres.estimators.base import Estimator
from nres.loop import run_updates
from nres.measured import learned
from nres.progress import Callback, Reporter, TrainState
from nres.results import SeedsResult, TrainResult
from nres.seeds import SeedsHistory
from nres.system import Theta, as_theta
from nres.updates import lift_update


class _Options(TypedDict, total=False):
    """The types of the arguments of `train` that have a default."""

    key: Array | None
    eval_fn: Callable[[Theta], Any] | None
    eval_every: int | None
    callback: Callback | Sequence[Callback] | None
    progress: bool | Reporter
    state: TrainState | None


@overload
def train(
    estimator: Estimator,
    optimizer: optax.GradientTransformation,
    theta: PyTree,
    *,
    updates: int,
    seeds: None = None,
    **options: Unpack[_Options],
) -> TrainResult: ...
@overload
def train(
    estimator: Estimator,
    optimizer: optax.GradientTransformation,
    theta: PyTree,
    *,
    updates: int,
    seeds: int,
    **options: Unpack[_Options],
) -> SeedsResult: ...
def train(
    estimator: Estimator,
    optimizer: optax.GradientTransformation,
    theta: PyTree,
    *,
    updates: int,
    key: Array | None = None,
    seeds: int | None = None,
    eval_fn: Callable[[Theta], Any] | None = None,
    eval_every: int | None = None,
    callback: Callback | Sequence[Callback] | None = None,
    progress: bool | Reporter = False,
    state: TrainState | None = None,
) -> TrainResult | SeedsResult:
    """Minimise the loss with an optax optimizer and an estimator's gradients.

    With a JAX system, many updates run in one compiled call; with any other pool, Python loops
    over the updates. Ctrl-C ends the run after the current updates, and `train` returns the
    result so far. Training also stops, with a `NonFiniteWarning`, if no worker gives a finite loss
    or gradient for two episodes (`result.diverged`).

    With `seeds=n`, one call trains n times from the same `theta`. Seed i is the run of a single
    call with `key=jax.random.fold_in(key, i)`, up to rounding. If JAX can trace the pool and the
    placement is local, all seeds run together in one vectorised program, which is compiled once;
    otherwise one seed follows another.

    Args:
        estimator: Any estimator of `nres`.
        optimizer: Any optax optimizer.
        theta: The parameters to start from, a pytree of floating-point arrays. They are not
            modified.
        updates: The number of updates to make.
        key: A JAX random key; required unless `state` is given.
        seeds: The number of seeds. By default, one run without an axis of seeds.
        eval_fn: A function of `theta` that returns a number or a dictionary of numbers. It is
            called before the first update, every `eval_every` updates, and after the last update;
            with `seeds`, for each seed.
        eval_every: The number of updates between evaluations; a twentieth of `updates` by default.
        callback: A function that is called with a `Progress` about twice per second, and after the
            evaluation before the first update; or a list of such functions, for example from
            `nres.callbacks`. The run ends early if one of them returns true. A callback follows
            one run, so it cannot be combined with `seeds`.
        progress: True to display the phase, the updates, the loss and the time left; or a
            `Reporter` of your own.
        state: The `state` of an earlier result, to resume that run. It cannot be combined with
            `seeds`.

    Returns:
        The final parameters, the state to resume from, and the history of the run. With `seeds`, a
        `SeedsResult`: parameters with an axis of seeds in front, and a history with the mean and
        the spread over the seeds.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If the optimizer does not fit `theta`, or the state does not fit the optimizer.
        NonFiniteError: If a worker's loss or gradient is not finite and the estimator was created
            with `nonfinite="raise"`.

    Example:
        ```python
        system = nres.systems.Lorenz()
        estimator = nres.NRES(system, workers=200, window=100, sigma=0.04)
        result = nres.train(
            estimator, optax.sgd(1e-5), system.initial_theta(), updates=1000, key=jax.random.key(0)
        )
        result.theta, result.history.loss

        several = nres.train(..., key=jax.random.key(0), seeds=8)
        several.theta[3], several.history.mean.loss, several.history.std.loss
        ```
    """
    callbacks = callback_list(callback)
    _check_parts(estimator, optimizer, eval_fn, callbacks, progress, state)
    theta, updates = as_theta(theta), whole_number("updates", updates, 0)
    update = lift_update(optimizer, theta)
    if seeds is not None:
        seeds = whole_number("seeds", seeds)
        _check_alone(callbacks, state)
    if state is not None:
        _check_optimizer_state(optimizer, theta, state)
    if eval_every is not None:
        eval_every = whole_number("eval_every", eval_every)
    eval_every = eval_every or max(1, math.ceil(updates / 20))
    if state is None and key is None:
        raise ValueError("train needs a key, or the state of an earlier run to resume.")
    key = None if key is None else as_key(key)
    run: Callable[..., Any] = functools.partial(
        run_updates,
        estimator,
        optimizer,
        update,
        theta,
        updates,
        eval_fn=eval_fn,
        eval_every=eval_every,
        callbacks=callbacks,
        progress=progress,
    )
    if seeds is None:
        return run(key, state)
    return run(key, seeds=seeds) if estimator.vectorisable else _one_by_one(run, key, seeds)


def _one_by_one(run: Callable[..., TrainResult], key: Any, seeds: int) -> SeedsResult:
    """Train the seeds one after another, and stack their results."""
    thetas: list[Theta] = []
    histories, diverged, interrupted = [], [], False
    for seed in range(seeds):
        try:
            result = run(jax.random.fold_in(key, seed), seed=seed)
        except KeyboardInterrupt:  # during compilation, or for a second time
            if not thetas:
                raise
            interrupted = True
            break
        # Only these are kept: the states of the workers may be large.
        thetas.append(result.theta)
        histories.append(result.history)
        diverged.append(result.diverged)
        interrupted = result.interrupted
        if interrupted:
            break
    theta = jax.tree.map(lambda *leaves: jnp.stack(leaves), *thetas)
    return SeedsResult(theta, SeedsHistory.of(histories), interrupted, np.array(diverged))


def callback_list(callback: Any) -> list[Any]:
    """Return the callbacks as a list: `None`, one function, or several."""
    if callback is None:
        return []
    return list(callback) if isinstance(callback, Sequence) else [callback]


def _check_optimizer_state(optimizer: Any, theta: Theta, state: TrainState) -> None:
    """Raise a `ValueError` if the state belongs to another optimizer."""
    trees = (state.optimizer, jax.eval_shape(optimizer.init, learned(theta)))
    given, own = (
        (str(jax.tree.structure(tree)), [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)])
        for tree in trees
    )
    if given != own:
        raise ValueError(
            "state belongs to another optimizer or to other parameters: its optimizer state is "
            f"{given[0]}, but this optimizer's is {own[0]}."
        )


def _check_alone(callbacks: list, state: Any) -> None:
    """Raise a `ValueError` for arguments that belong to one run, if there are several seeds."""
    if callbacks:
        raise ValueError(
            "callback follows one run and cannot be combined with seeds: leave it out, or call "
            "train once per seed with key=jax.random.fold_in(key, seed) and a callback of its own."
        )
    if state is not None:
        raise ValueError(
            "state belongs to one run and cannot be combined with seeds: resume each run by itself."
        )


def _check_parts(
    estimator: Any, optimizer: Any, eval_fn: Any, callbacks: list, progress: Any, state: Any
) -> None:
    """Raise a `TypeError` for an argument of the wrong type, and suggest the right one."""
    if not isinstance(estimator, Estimator):
        raise TypeError(
            f"estimator must be an estimator of nres, for example nres.NRES(system, ...); got "
            f"{type(estimator).__name__}."
        )
    if not (callable(getattr(optimizer, "init", None)) and hasattr(optimizer, "update")):
        name = getattr(optimizer, "__name__", None)
        meant = f"optax.{name}(1e-3)" if callable(optimizer) and name else "optax.sgd(1e-3)"
        raise TypeError(
            f"optimizer must be an optax optimizer, got {name or repr(optimizer)}: write {meant}."
        )
    if state is not None and not isinstance(state, TrainState):
        raise TypeError(
            f"state must be the `state` of an earlier result, got {type(state).__name__}."
        )
    if not isinstance(progress, bool | Reporter):
        raise TypeError(f"progress must be True, False or an nres.Reporter, got {progress!r}.")
    for name, function in [("eval_fn", eval_fn), *(("callback", each) for each in callbacks)]:
        if not (callable(function) or (name == "eval_fn" and function is None)):
            raise TypeError(f"{name} must be a function, got {type(function).__name__}.")
