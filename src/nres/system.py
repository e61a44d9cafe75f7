"""`System`: one trajectory of an unrolled computation graph, in pure JAX."""

import abc
import dataclasses
import functools
import traceback
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from nres.checks import whole_number
from nres.lengths import Lengths
from nres.measured import learned

Theta: TypeAlias = PyTree[Float[Array, "..."]]
State: TypeAlias = PyTree[Any]


class _SystemMeta(type(eqx.Module)):  # type: ignore[misc]
    """Metaclass that explains how to declare a field that `__init__` sets undeclared."""

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        try:
            return super().__call__(*arguments, **options)
        except dataclasses.FrozenInstanceError as error:
            field = str(error).rpartition(" ")[2]
            raise TypeError(
                f"{cls.__name__} sets the field {field} without declaring it: add a line with its "
                f"type to the class body, for example `{field.strip(chr(39))}: float`."
            ) from error


class System(eqx.Module, metaclass=_SystemMeta):
    r"""An unrolled computation graph: the same parameters applied for `horizon` steps.

    A system defines $s_0 = \mathrm{init}(\theta)$ and
    $(s_{t+1}, L_{t+1}) = \mathrm{step}(s_t, \theta, t)$, and therefore the loss
    $L(\theta) = \frac1T \sum_{t=1}^{T} L_t$ that estimators differentiate. It describes *one*
    trajectory and knows nothing about noise, batches or devices. Systems are Equinox modules:
    arrays stored in fields (data sets, tables) become arguments of the compiled functions.

    A subclass declares `horizon` and implements `init` and `step`. It may also define
    `initial_theta(key)`, `metrics(theta, key)` and `absorbing_loss`.

    **Ending early.** A `step` may return `(state, loss, ended)` instead of `(state, loss)`.
    Once `ended` is true, the trajectory is absorbed: its state no longer changes, and every
    remaining step up to the horizon costs `absorbing_loss` (0 by default). The horizon is
    therefore the same for all parameters, and estimates stay unbiased. Systems that return only
    `(state, loss)` do not pay for this feature.

    **Episodes of different lengths.** If lengths differ for reasons that have nothing to do with
    `theta`, set `lengths` to a `nres.lengths.Lengths`, and `horizon` to its `most`. Every episode
    draws its length, and the loss is the mean over steps: the expected sum of an episode's losses,
    divided by the expected length.

    Example:
        ```python
        class Decay(nres.System):
            horizon: int = 100

            def init(self, theta, key):
                return jnp.ones(())

            def step(self, state, theta, t, key):
                state = state * jnp.exp(-theta["rate"])
                return state, (state - 0.5) ** 2
        ```
    """

    horizon: eqx.AbstractVar[int]
    """T, the number of steps in an episode."""

    # Without an annotation this is not a field: subclasses set a class attribute or add a field.
    absorbing_loss = 0.0

    # Like `absorbing_loss`: subclasses set a class attribute or add a static field.
    lengths = cast(Lengths | None, None)

    initial_theta: ClassVar[Callable[..., PyTree] | None] = None
    """Optional method: `initial_theta(key)` returns the parameters to start from."""

    metrics: ClassVar[Callable[..., Mapping[str, Any]] | None] = None
    """Optional method: `metrics(theta, key)` returns numbers by name that measure progress. The
    first one ranks parameters; lower is better. Without this method, progress is measured by the
    mean loss of some whole episodes."""

    film: ClassVar[Callable[..., Any] | None] = None
    """Optional method that draws an episode, as `nres.Pool.film` does."""

    observed_between: ClassVar[Callable[..., tuple[PyTree, ...]] | None] = None
    """Optional method for a `theta` with `nres.measured.Measured` parts:
    `observed_between(theta, before, after)` returns what the trajectory observed between two states
    of one episode, for each of these parts. Sums over trajectories update them."""

    begun: ClassVar[Callable[..., State] | None] = None
    """Optional method: `begun(begins, fresh, old)` returns the state before the first step of a
    window: `fresh`, from `init`, if an episode begins with it, else `old`. By default, it is
    `nres.system.selected`. A method can leave arrays stale that `step` does not read at
    `t = 0`."""

    # The number of steps that `metrics` takes, if known. This is a class attribute, not a field.
    metrics_steps: ClassVar[int | None] = None

    @abc.abstractmethod
    def init(self, theta: Theta, key: Key[Array, ""]) -> State:
        """Return the state before the first step.

        Args:
            theta: The parameters, a pytree of floating-point arrays.
            key: A random key of this trajectory. Both members of an antithetic pair get the same
                key.

        Returns:
            Any pytree of arrays. It may depend on `theta`.
        """

    @abc.abstractmethod
    def step(
        self, state: State, theta: Theta, t: Int[Array, ""], key: Key[Array, ""]
    ) -> tuple[State, Float[Array, ""]] | tuple[State, Float[Array, ""], Any]:
        """Advance the trajectory by one step.

        Args:
            state: The state that `init` or the previous `step` returned.
            theta: The parameters, a pytree of floating-point arrays.
            t: The number of steps already taken, `0 <= t < horizon`.
            key: A random key of this trajectory and step. Both members of an antithetic pair get
                the same key.

        Returns:
            The new state, with the same structure, shapes and dtypes; the loss of this step, a
            floating-point scalar; and optionally a boolean scalar that is true if the trajectory
            ended with this step.
        """


def selected(begins: Bool[Array, ""], fresh: State, old: State) -> State:
    """Return `fresh` if an episode begins, else `old`, array by array."""
    return jax.tree.map(lambda new, old: jnp.where(begins, new, old), fresh, old)


def as_theta(theta: PyTree) -> Theta:
    """Convert every leaf of `theta` to a JAX array; refuse leaves that are not floating-point."""
    leaves = jax.tree_util.tree_leaves_with_path(theta)
    if not leaves:
        raise ValueError("theta has no arrays: there is nothing to differentiate.")
    for path, leaf in leaves:
        name = "theta" + jax.tree_util.keystr(path)
        if not isinstance(leaf, float) and not eqx.is_array_like(leaf):
            raise ValueError(f"{name} must be a floating-point array, got {type(leaf).__name__}.")
        try:
            dtype = jnp.result_type(leaf)
        except TypeError:  # JAX does not have this dtype: objects, or non-native byte order
            dtype = leaf.dtype
        if not jnp.issubdtype(dtype, jnp.floating) or not dtype.isnative:
            raise ValueError(
                f"{name} must be a floating-point array, got dtype {dtype}. "
                "Convert it, or store what is not learned in the system instead."
            )
        if jnp.size(leaf) == 0:
            raise ValueError(f"{name} is empty (shape {jnp.shape(leaf)}).")
    # The explicit dtype keeps Python numbers from staying weakly typed and compiling twice.
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), theta)


def check_finite(theta: Theta) -> None:
    """Raise a `ValueError` that names the first leaf of `theta` that is not finite."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(theta):
        if isinstance(leaf, jax.core.Tracer):
            continue
        # NumPy, because this may be called while JAX traces something else.
        bad = int(np.size(leaf) - np.isfinite(np.asarray(leaf)).sum())
        if bad:
            name = "theta" + jax.tree_util.keystr(path)
            raise ValueError(f"{bad} of the {np.size(leaf)} numbers in {name} are not finite.")


def horizon_of(system: Any) -> int:
    """Return the horizon of a system or pool, checked to be a positive integer."""
    name = type(system).__name__
    lengths, horizon = system.lengths, whole_number(f"{name}.horizon", system.horizon)
    if lengths is not None and not (isinstance(lengths, Lengths) and lengths.most == horizon):
        raise ValueError(
            f"{name}.lengths must be an nres.lengths.Lengths whose `most` is the horizon "
            f"{horizon}, got {lengths!r}."
        )
    if lengths is not None:
        lengths.check()
    return horizon


def check_one_length(what: str, system: Any) -> None:
    """Raise a `ValueError` if the episodes of a system or pool differ in length."""
    if system.lengths is not None:
        raise ValueError(
            f"{what} needs episodes of one length; {type(system).__name__}.lengths is "
            f"{system.lengths!r}."
        )


def parameter_count(theta: PyTree) -> int:
    """Count the parameters, d, without measured ones."""
    return sum(leaf.size for leaf in jax.tree.leaves(learned(theta)))


def at_least_single(*dtypes: Any) -> Any:
    """Return the dtype for sums over these dtypes; half precision would lose digits."""
    return jnp.float64 if jnp.float64 in dtypes else jnp.float32


def squared_norm(tree: PyTree) -> Float[Array, ""]:
    """Return the squared Euclidean norm of a pytree of arrays."""
    leaves = jax.tree.leaves(tree)
    dtype = at_least_single(*[x.dtype for x in leaves])
    return functools.reduce(jnp.add, [jnp.sum(x.astype(dtype) ** 2) for x in leaves])


def check_system(system: System, theta: Theta) -> None:
    """Raise a `ValueError` if `init` and `step` do not fit together, without running them."""
    name = type(system).__name__
    key = jax.eval_shape(lambda: jax.random.key(0))
    t = jax.ShapeDtypeStruct((), jnp.int32)

    def init(theta: Theta, key: Any) -> State:
        state = system.init(theta, key)
        for path, leaf in jax.tree_util.tree_leaves_with_path(state):
            if not eqx.is_array_like(leaf):
                where = "state" + jax.tree_util.keystr(path)
                raise ValueError(
                    f"{name}.init must return arrays: {where} is of type {type(leaf).__name__}."
                )
        return jax.tree.map(jnp.asarray, state)

    def step(state: State, theta: Theta, t: Any, key: Any) -> Any:
        result = system.step(state, theta, t, key)
        if not isinstance(result, tuple) or len(result) not in (2, 3):
            raise ValueError(f"{name}.step must return (state, loss) or (state, loss, ended).")
        if not eqx.is_array(result[1]):
            raise ValueError(
                f"{name}.step must return a JAX array as loss, got {result[1]!r} of type "
                f"{type(result[1]).__name__}: compute it from the state, with jax.numpy."
            )
        return jax.tree.map(jnp.asarray, result)

    before = _traced(name, "init", init, theta, key)
    after, loss, *ended = _traced(name, "step", step, before, theta, t, key)
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


def _traced(system: str, method: str, function: Callable, *arguments: Any) -> Any:
    """Return the shapes that a system's method returns, or explain why JAX cannot trace it."""
    try:
        return jax.eval_shape(function, *arguments)
    except NOT_TRACEABLE as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_users(f.filename)]
        where = f"{frames[-1].filename}, line {frames[-1].lineno}: " if frames else ""
        raise ValueError(
            f"{where}{system}.{method} needs the value of a traced array, for example in a Python "
            "`if`, `while`, `float()` or NumPy call: use jnp.where, jax.lax.cond or jax.numpy."
        ) from error


NOT_TRACEABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


def _is_users(filename: str) -> bool:
    """Return true if a file belongs neither to this package nor to an installed one."""
    path = filename.replace("\\", "/")
    ours = __file__.replace("\\", "/").rpartition("/")[0]
    return not path.startswith((ours, "<")) and "/site-packages/" not in path
