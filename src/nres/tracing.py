"""Functions that are compared by what they compute, not by their identity.

JAX recompiles a function if a constant argument is a different object, even if both compute the
same. An optimizer or schedule that is built inside a call, as in a notebook cell, is a new closure
every time. `lift` traces such a function once. The result equals every other function that was
traced to the same operations. The numbers in it (a learning rate, the values of a schedule) become
arguments of compiled code, so that changing them does not recompile either. `bake` instead leaves
the numbers in compiled code, which makes it faster: for functions whose numbers do not change.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun
from jaxtyping import Array


class Program:
    """The operations of a traced function; equal to any other with the same operations.

    Args:
        jaxpr: The operations. Their inputs are the numbers, the constants and the arguments.
        structure: The tree structure of the result.
        baked: The values of constants that are no inputs.
    """

    def __init__(self, jaxpr: Any, structure: Any, baked: Sequence[Array] = ()):
        self.call, self.structure = jaxpr_as_fun(ClosedJaxpr(jaxpr, list(baked))), structure
        text = f"{jaxpr.pretty_print(use_color=False)}\n{structure}"
        self.key = (text, *map(_told, baked), *_untold(jaxpr))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


class Lifted(eqx.Module):
    """A traced function: its operations are static, and numbers that may change are arrays."""

    program: Program = eqx.field(static=True)
    numbers: list[Array]
    constants: list[Array]

    def __call__(self, *arguments: Any) -> Any:
        leaves = self.program.call(*self.numbers, *self.constants, *jax.tree.leaves(arguments))
        return jax.tree.unflatten(self.program.structure, leaves)


def lift(function: Callable[..., Any], *examples: Any) -> Lifted:
    """Trace a function so that its numbers can change without recompilation.

    Args:
        function: Any function that JAX can trace.
        examples: Its arguments, as arrays or as their shapes.

    Returns:
        A callable pytree that takes arguments of these shapes.

    Example:
        ```python
        rate = nres.tracing.lift(optax.cosine_decay_schedule(1e-3, 100), jnp.int32(0))
        ```
    """
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*examples)
    jaxpr = closed.jaxpr
    numbers = [
        jnp.asarray(operand.val, operand.aval.dtype)
        for operand in [*(x for e in jaxpr.eqns for x in e.invars), *jaxpr.outvars]
        if _is_number(operand)
    ]
    # Variables that replace the numbers, taken from a program with as many inputs.
    inputs = jax.make_jaxpr(lambda *numbers: numbers)(*numbers).jaxpr.invars
    left = iter(inputs)

    def replaced(operands: Any) -> list[Any]:
        return [next(left) if _is_number(operand) else operand for operand in operands]

    equations = [equation.replace(invars=replaced(equation.invars)) for equation in jaxpr.eqns]
    jaxpr = jaxpr.replace(
        eqns=equations,
        outvars=replaced(jaxpr.outvars),
        constvars=[],
        invars=[*inputs, *jaxpr.constvars, *jaxpr.invars],
    )
    program = Program(jaxpr, jax.tree.structure(shape))
    return Lifted(program, numbers, [jnp.asarray(constant) for constant in closed.consts])


def bake(function: Callable[..., Any], *examples: Any) -> Lifted:
    """Trace a function whose numbers are part of what it is, so that compiled code can use them.

    A compiler removes a multiplication by a one that it knows. Only large arrays become arguments,
    and what cannot be known: random keys, and arrays that JAX is tracing.

    Args:
        function: Any function that JAX can trace.
        examples: Its arguments, as arrays or as their shapes.

    Returns:
        A callable pytree that takes arguments of these shapes. It equals another one if their
        numbers are the same, too.

    Example:
        ```python
        step = nres.tracing.bake(environment.step, state, action)
        ```
    """
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*examples)
    jaxpr, left = closed.jaxpr, MOST_BAKED
    baked: list[tuple[Any, Any]] = []
    given: list[tuple[Any, Any]] = []
    for variable, constant in zip(jaxpr.constvars, map(jnp.asarray, closed.consts), strict=True):
        fits = constant.size <= left and not isinstance(constant, jax.core.Tracer)
        if fits and not jnp.issubdtype(constant.dtype, jax.dtypes.prng_key):
            baked.append((variable, constant))
            left -= constant.size
        else:
            given.append((variable, constant))
    jaxpr = jaxpr.replace(
        constvars=[variable for variable, _ in baked],
        invars=[*(variable for variable, _ in given), *jaxpr.invars],
    )
    program = Program(jaxpr, jax.tree.structure(shape), [value for _, value in baked])
    return Lifted(program, [], [value for _, value in given])


# The number of elements of a function's arrays that are part of compiled code.
MOST_BAKED = 2**16


def _told(constant: Any) -> tuple[Any, ...]:
    """Return all that distinguishes an array from others, to compare and to hash."""
    array = np.asarray(constant)
    return array.shape, str(array.dtype), array.tobytes()


def _untold(jaxpr: Any) -> Iterator[Any]:
    """Yield what the text of a program omits: constants of inner functions, and callbacks."""
    for equation in jaxpr.eqns:
        is_callback = "callback" in equation.primitive.name
        for value in equation.params.values():
            if is_callback and callable(value):
                yield value
            for inner in value if isinstance(value, tuple | list) else [value]:
                if isinstance(inner, ClosedJaxpr):
                    yield from map(_told, inner.consts)
                    yield from _untold(inner.jaxpr)
                elif isinstance(inner, Jaxpr):
                    yield from _untold(inner)


def _is_number(operand: Any) -> bool:
    """Return true if an operand is a floating-point number written into the function."""
    if not isinstance(operand, Literal):
        return False
    kind: Any = operand.aval
    return kind.shape == () and jnp.issubdtype(kind.dtype, jnp.inexact)
