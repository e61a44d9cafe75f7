"""The computation of an estimate, and of the states before it."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from nres.estimators.averaging import Pairs, average
from nres.estimators.signature import check_signature, signature_of
from nres.estimators.values import Estimate, EstimatorState, Unlocking
from nres.execution import compiled, needed_lengths, repeat, windows_are_whole
from nres.measured import learned, measured, updated
from nres.system import Theta
from nres.workers import (
    EVEN,
    Workers,
    groups_of,
    place_independently,
    places_evenly,
    places_of,
    spread_evenly,
    starting_windows,
    worker_keys,
)


def blank_state(estimator: Any, theta: Theta, key: Key[Array, ""]) -> EstimatorState:
    """Return the state in which every worker is at step 0 of its first episode."""
    count = estimator.workers
    zeros, zero = jnp.zeros(count, jnp.int32), jnp.zeros((), jnp.int32)
    groups = groups_of(key, count, estimator.group_size(theta))
    workers = Workers(worker_keys(key, count), zeros, zeros, groups)
    adaptation = estimator.begin_adaptation()
    present = estimator.adapted(adaptation).at(zero)
    carry = estimator.placement.begin(present, theta, workers)
    return EstimatorState(workers, carry, zero, signature_of(estimator, theta), adaptation)


def gather_state(estimator: Any, theta: Theta, state: EstimatorState) -> EstimatorState:
    """Return the state as plain arrays, as on a single device, to be saved."""
    present = estimator.adapted(state.adaptation).at(state.update)
    carry = estimator.placement.gather(present, theta, state.workers, state.carry)
    return dataclasses.replace(state, carry=carry)


@compiled
def starting_points(
    estimator: Any, theta: Theta, key: Key[Array, ""]
) -> tuple[EstimatorState, Int[Array, " workers"]]:
    """Return every worker at step 0, and the number of windows to its starting point."""
    state = blank_state(estimator, theta, key)
    if estimator.pool.lengths is not None:
        even = estimator.phases == EVEN
        places = places_evenly(key, estimator.workers) if even else places_of(state.workers.key)
        offset = starting_windows(estimator.episode_ends(state.workers), places, estimator.window)
    elif estimator.phases == EVEN:
        offset = spread_evenly(key, estimator.workers, estimator.windows)
    else:
        offset = place_independently(state.workers.key, estimator.windows)
    return state, estimator.placement.everywhere(offset)


def steps_are_known(estimator: Any, state: EstimatorState) -> bool:
    """Return true if every worker takes exactly W steps in every window."""
    return windows_are_whole(estimator) and estimator.pool.never_ends(state.carry)


@compiled
def unlock(
    estimator: Any, theta: Theta, key: Key[Array, ""], update: Int[Array, ""]
) -> tuple[EstimatorState, Int[Array, " workers"], Int[Array, ""]]:
    """Move every worker to its starting point; return the state and the steps that it took."""
    state, offset = starting_points(estimator, theta, key)
    state = eqx.tree_at(lambda s: s.update, state, update)
    rounds = offset.max()

    def one_round(i, loop):
        state, total, sequential = loop
        # Workers start late and arrive together, so waiting workers are all at step 0. Whatever a
        # pool does with them meanwhile is undone when their episode begins.
        unlocking = Unlocking(jnp.ones((), bool), i >= rounds - offset)
        estimate = compute_estimate(estimator, theta, state, unlocking)
        spent = estimate.spent
        longest = spent.bound.sequential - spent.unused[1]
        return estimate.state, total + estimate.info.steps, sequential + longest

    loop = (state, jnp.zeros_like(offset), jnp.zeros((), jnp.int32))
    state, total, sequential = repeat(estimator, rounds, one_round, loop)
    return state, estimator.placement.everywhere(total), sequential


def compute_estimate(
    estimator: Any, theta: Theta, state: EstimatorState, unlocking: Unlocking | None = None
) -> Estimate:
    """Compute an estimate without compiling it and without the policy for non-finite values.

    With `unlocking`, this may be a round in which only some workers take part and which does not
    count as an update.
    """
    check_signature(estimator, theta, state.signature)
    # A window never crosses the end of an episode.
    ends = estimator.episode_ends(state.workers)
    length = jnp.minimum(estimator.window, ends - state.workers.start)
    made = jnp.int32(1)
    if unlocking is not None:
        length = jnp.where(unlocking.moving, length, 0)
        made = jnp.where(unlocking.on, 0, made)
    outcome = estimator.placement.run(
        estimator.adapted(state.adaptation),
        theta,
        state.update,
        state.workers,
        state.carry,
        needed_lengths(estimator, length),
    )
    contributions = estimator.shaped(outcome.contributions)
    if unlocking is not None and unlocking.counts:
        steps = jnp.where(unlocking.moving, contributions.steps, 0)
        contributions = eqx.tree_at(lambda c: c.steps, contributions, steps)
    grad, loss, spent, info = average(
        contributions,
        outcome.absent,
        state.workers,
        estimator.most_steps,
        learned(theta),
        Pairs.of(estimator, theta, state.workers),
    )
    if state.adaptation is not None:
        info = dataclasses.replace(info, sigma=state.adaptation.typical)
    if outcome.absent is not None:
        length = jnp.where(outcome.absent, 0, length)
    adaptation = estimator.adapt(state.adaptation, state.workers.start, contributions)
    parts = updated(theta, contributions.observed)
    if unlocking is not None:
        keep = lambda old, new: jnp.where(unlocking.on, old, new)  # noqa: E731
        before = state.adaptation, measured(theta)
        adaptation, parts = jax.tree.map(keep, before, (adaptation, parts))
    state = EstimatorState(
        state.workers.advance(length, ends),
        outcome.carry,
        state.update + made,
        state.signature,
        adaptation,
    )
    return Estimate(grad, loss, state, spent, info, parts, outcome.report)


compiled_estimate = compiled(compute_estimate)
