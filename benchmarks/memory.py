"""Peak memory of one NRES estimate for several N and d, compared with the necessary memory."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp

import nres
from nres.estimators.computing import compute_estimate

STATES = 8


class Probe(nres.System):
    """A system with a state of 8 numbers and a step that uses all d parameters."""

    horizon: int = 100

    def init(self, theta, key):
        return jnp.ones(STATES)

    def step(self, state, theta, t, key):
        state = jnp.tanh(theta @ jnp.resize(state, theta.shape[1:]))
        return state, jnp.sum(state**2)


def run(quick: bool = False) -> list[dict]:
    """Read the peak memory from the compiler's plan, without running anything."""
    grid = [(n, d) for n in (100, 1000, 10_000) for d in (1000, 10_000, 100_000)]
    rows = []
    for workers, parameters in grid[:1] if quick else grid:
        for noise in ("keep", "regenerate"):
            estimator = nres.NRES(
                Probe(), workers=workers, window=10, sigma=0.1, store_noise=noise == "keep"
            )
            theta = jax.ShapeDtypeStruct((STATES, parameters // STATES), jnp.float32)
            key = jax.eval_shape(lambda: jax.random.key(0))
            state = eqx.filter_eval_shape(estimator.init, theta, key)
            run = functools.partial(compute_estimate, estimator)
            # The state is donated, as in training.
            plan = jax.jit(run, donate_argnums=1).lower(theta, state).compile().memory_analysis()
            assert plan is not None
            held = 2 * STATES * 4 * workers + (4 * parameters if noise == "keep" else 8) * workers
            used = plan.argument_size_in_bytes + plan.output_size_in_bytes
            used += plan.temp_size_in_bytes - plan.alias_size_in_bytes
            rows.append(
                {
                    "workers": workers,
                    "parameters": parameters,
                    "noise": noise,
                    "peak_bytes": used,
                    "states_and_noise_bytes": held,
                }
            )
    return rows
