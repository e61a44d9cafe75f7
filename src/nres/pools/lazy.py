r"""Matrices $W + A B^\top$ that act as arrays, without being formed.

`lazily` lets a function of parameters take `Perturbed` ones: it traces the function as if they were
arrays, and carries out the traced operations one by one. Products, convolutions, transposes,
conversions and selections have rules here; under `jax.vmap` over lanes, the product with $W$
becomes one large product for all lanes. Functions that are called inside, and the bodies of loops
and branches, are carried out in the same way. Any other operation forms the lane's matrix, and
warns once.
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from nres.noise.factors import is_perturbed
from nres.pools.base import MaterialisedWarning
from nres.pools.lazy_matrix import OPERATIONS, LazyMatrix, is_lazy


def lazily(function: Callable) -> Callable:
    """Let a function take arguments with `Perturbed` leaves, without axes of lanes."""

    def called(*arguments: Any) -> Any:
        paths = jax.tree_util.tree_leaves_with_path(arguments, is_leaf=is_perturbed)
        values = [
            LazyMatrix(
                *(x.base, x.sign * x.a, x.b),
                rows=tuple(range(x.a.ndim - 1)),
                name=jax.tree_util.keystr(path[1:]),
            )
            if is_perturbed(x)
            else x
            for path, x in paths
        ]
        like = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.base.shape, x.base.dtype) if is_perturbed(x) else x,
            arguments,
            is_leaf=is_perturbed,
        )
        traced, shapes = jax.make_jaxpr(function, return_shape=True)(*like)
        results = _formed("return", _carried_out(traced, values))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return called


def _carried_out(closed: Any, values: Sequence[Any]) -> list[Any]:
    """Carry out the operations of a closed jaxpr, with lazy matrices among its inputs."""
    jaxpr = closed.jaxpr
    known = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    known |= dict(zip(jaxpr.invars, values, strict=True))

    def read(variable: Any) -> Any:
        return variable.val if hasattr(variable, "val") else known[variable]

    for equation in jaxpr.eqns:
        inputs = [read(variable) for variable in equation.invars]
        primitive, params = equation.primitive, equation.params
        if not any(map(is_lazy, inputs)):
            outputs = _bound(primitive, inputs, params)
        elif (inner := _called(primitive.name, params)) is not None:
            outputs = _carried_out(inner, inputs)
        else:
            rule = RULES.get(primitive.name)
            outputs = NotImplemented if rule is None else rule(*inputs, **params)
            if outputs is NotImplemented:
                outputs = _bound(primitive, _formed(primitive.name, inputs), params)
        several = outputs if isinstance(outputs, list | tuple) else [outputs]
        known |= dict(zip(equation.outvars, several, strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def _bound(primitive: Any, inputs: Sequence[Any], params: dict[str, Any]) -> Any:
    given = primitive.get_bind_params(params)
    # Before JAX 0.10, functions among the parameters come first.
    functions, params = given if isinstance(given, tuple) else ((), given)
    return primitive.bind(*functions, *inputs, **params)


def _called(name: str, params: dict[str, Any]) -> Any:
    """Return the closed jaxpr of an operation that only calls a function, else `None`."""
    if name not in CALLS:
        return None
    inner = next(params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in params)
    return inner if hasattr(inner, "consts") else jax.extend.core.ClosedJaxpr(inner, ())


# Derivatives that a user has defined do not matter here: nothing is differentiated.
CALLS = (
    *("pjit", "jit", "closed_call", "core_call", "checkpoint", "remat", "remat2"),
    *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"),
)


def _formed(operation: str, values: Sequence[Any]) -> list[Any]:
    """Form the matrices among some values, with a warning for each."""
    result = []
    for value in values:
        if is_lazy(value):
            _warn(operation, value.name)
            value = value.formed()
        result.append(value)
    return result


@functools.cache
def _warn(operation: str, leaf: str) -> None:
    warnings.warn(
        f"the operation {operation} forms the perturbed matrix theta{leaf} of every lane, which "
        "takes memory and time; products, convolutions, transposes and selections do not form it.",
        MaterialisedWarning,
        stacklevel=2,
    )


def _scan(*values: Any, jaxpr: Any, num_consts: int, num_carry: int, **params: Any) -> Any:
    """Run a loop that has lazy constants, or that takes lazy matrices apart along the first axis.

    Matrices that it carries are formed.
    """
    first = num_consts + num_carry
    constants, scanned = values[:num_consts], values[first:]
    carried = _formed("scan", values[num_consts:first])

    def parts_of(x: Any) -> Any:
        """Return the parts that have the first axis."""
        return x.each(lambda y, axes: y if 0 in axes else None) if is_lazy(x) else x

    def rebuilt(x: Any, parts: Any) -> Any:
        if not is_lazy(x):
            return parts
        whole = x.each(lambda y, axes: y)
        return x.without((0,), *(w if p is None else p for w, p in zip(whole, parts, strict=True)))

    def body(carry, parts):
        inputs = [rebuilt(x, part) for x, part in zip(scanned, parts, strict=True)]
        results = _formed("scan", _carried_out(jaxpr, [*constants, *carry, *inputs]))
        return results[:num_carry], results[num_carry:]

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    carry, collected = jax.lax.scan(body, carried, [parts_of(x) for x in scanned], **options)
    return [*carry, *collected]


def _while(
    *values: Any, cond_jaxpr: Any, body_jaxpr: Any, cond_nconsts: int, body_nconsts: int
) -> Any:
    consts = cond_nconsts + body_nconsts
    of_condition, of_body = values[:cond_nconsts], values[cond_nconsts:consts]

    def condition(carry):
        return _carried_out(cond_jaxpr, [*of_condition, *carry])[0]

    def body(carry):
        return _formed("while", _carried_out(body_jaxpr, [*of_body, *carry]))

    return jax.lax.while_loop(condition, body, _formed("while", values[consts:]))


def _cond(index: Any, *values: Any, branches: Any, **params: Any) -> Any:
    """Carry out all branches and choose, which `vmap` does anyway if lanes choose differently.

    But `vmap` would also copy the unperturbed matrix for every lane.
    """
    if is_lazy(index) or params.get("branches_platforms") is not None:
        return NotImplemented  # branches for other platforms could not be carried out
    results = [_formed("cond", _carried_out(branch, values)) for branch in branches]
    index = jnp.clip(jnp.asarray(index, jnp.int32), 0, len(branches) - 1)
    return [jax.lax.select_n(index, *cases) for cases in zip(*results, strict=True)]


RULES: dict[str, Callable] = OPERATIONS | {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}
