"""`System`: one trajectory of an unrolled computation graph, in pure JAX."""

import abc
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

Theta: TypeAlias = PyTree[Float[Array, "..."]]
State: TypeAlias = PyTree[Any]


class System(eqx.Module):
    r"""What is unrolled: the same parameters applied for `horizon` steps.

    A system defines $s_0 = \mathrm{init}(\theta)$ and
    $(s_{t+1}, L_{t+1}) = \mathrm{step}(s_t, \theta, t)$, and so the loss
    $L(\theta) = \frac1T \sum_{t=1}^{T} L_t$ that estimators differentiate. It describes *one*
    trajectory and knows nothing of noise, batches or devices. Systems are Equinox modules:
    arrays held as fields (data sets, tables) become arguments of the compiled functions.

    ```python
    class Decay(nres.System):
        horizon: int = 100

        def init(self, theta, key):
            return jnp.ones(())

        def step(self, state, theta, t, key):
            state = state * jnp.exp(-theta["rate"])
            return state, (state - 0.5) ** 2
    ```

    **Ending early.** A `step` may return `(state, loss, ended)` instead of `(state, loss)`.
    Once `ended` is true the trajectory is absorbed: its state stays as it is and every remaining
    step up to the horizon costs `absorbing_loss`, so that the horizon is the same for every
    parameter and estimates stay unbiased. A system that does not use this pays nothing for it.
    """

    horizon: eqx.AbstractVar[int]
    """T: the number of steps in an episode."""

    # Not annotated, so not a field: a subclass sets it as a class attribute or declares a field.
    absorbing_loss = 0.0

    @abc.abstractmethod
    def init(self, theta: Theta, key: Key[Array, ""]) -> State:
        """The state before the first step: any pytree of arrays. It may depend on `theta`."""

    @abc.abstractmethod
    def step(
        self, state: State, theta: Theta, t: Int[Array, ""], key: Key[Array, ""]
    ) -> tuple[State, Float[Array, ""]] | tuple[State, Float[Array, ""], Any]:
        """One step.

        **Arguments:**

        - `state`: what `init` or the last `step` returned.
        - `theta`: the parameters, a pytree of floating-point arrays.
        - `t`: the number of steps already taken, `0 <= t < horizon`.
        - `key`: a random key of this trajectory and step. Both members of an antithetic pair
            get the same one.

        **Returns:** the new state, of the same structure, shapes and dtypes; the loss of this
        step, a scalar; optionally whether the trajectory ended with this step.
        """


def as_theta(theta: PyTree) -> Theta:
    """`theta` with every leaf a JAX array; refused where a leaf is not floating-point."""
    leaves = jax.tree_util.tree_leaves_with_path(theta)
    if not leaves:
        raise ValueError("theta has no arrays: there is nothing to differentiate.")
    for path, leaf in leaves:
        name = "theta" + jax.tree_util.keystr(path)
        if not isinstance(leaf, float) and not eqx.is_array_like(leaf):
            raise ValueError(f"{name} must be a floating-point array, got {type(leaf).__name__}.")
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise ValueError(
                f"{name} must be a floating-point array, got dtype {jnp.result_type(leaf)}. "
                "Convert it, or keep what is not to be learned in the system instead."
            )
        if jnp.size(leaf) == 0:
            raise ValueError(f"{name} is empty (shape {jnp.shape(leaf)}).")
    # With a dtype, so that a Python number does not stay weakly typed and compile twice.
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), theta)


def parameter_count(theta: PyTree) -> int:
    """d, the number of parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(theta))


def at_least_single(*dtypes: Any) -> Any:
    """The dtype in which numbers of these are added up: half precision would lose them."""
    return jnp.float64 if jnp.float64 in dtypes else jnp.float32


def check_system(system: System, theta: Theta) -> None:
    """Raise a `ValueError` where `init` and `step` do not fit together, without running them."""
    name = type(system).__name__
    key = jax.eval_shape(lambda: jax.random.key(0))
    t = jax.ShapeDtypeStruct((), jnp.int32)
    before = jax.eval_shape(lambda th, k: jax.tree.map(jnp.asarray, system.init(th, k)), theta, key)
    result = jax.eval_shape(system.step, before, theta, t, key)
    if not isinstance(result, tuple) or len(result) not in (2, 3):
        raise ValueError(f"{name}.step must return (state, loss) or (state, loss, ended).")
    after, loss, *ended = result
    if jnp.shape(loss) != () or not jnp.issubdtype(loss.dtype, jnp.floating):
        raise ValueError(
            f"{name}.step must return a scalar floating-point loss, "
            f"got shape {jnp.shape(loss)} and dtype {loss.dtype}."
        )
    if ended and (jnp.shape(ended[0]) != () or ended[0].dtype != jnp.bool_):
        raise ValueError(
            f"{name}.step must return a scalar boolean as its third value, "
            f"got shape {jnp.shape(ended[0])} and dtype {ended[0].dtype}."
        )
    structures = [jax.tree.structure(state) for state in (before, after)]
    if len(set(structures)) > 1:
        raise ValueError(
            f"{name}.step changes the structure of the state: init gives {structures[0]}, "
            f"step gives {structures[1]}."
        )
    for (path, old), new in zip(
        jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True
    ):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            leaf = "state" + jax.tree_util.keystr(path)
            raise ValueError(
                f"{name}.step changes {leaf}: init gives {old.dtype}{list(old.shape)}, "
                f"step gives {new.dtype}{list(new.shape)}."
            )
