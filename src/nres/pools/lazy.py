r"""Matrices $W + A B^\top$ that act as arrays, without being formed.

`lazily` lets a function of parameters take `Perturbed` ones: it traces the function as if they were
arrays, and carries out the traced operations one by one. Products with vectors and matrices,
transposes, conversions and selections of rows have rules here; under `jax.vmap` over lanes, the
product with $W$ becomes one large product for all lanes. Functions that are called inside, and the
bodies of loops and branches, are carried out in the same way. Any other operation forms the lane's
matrix, and warns once.
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nres.noise.factors import is_perturbed
from nres.pools.base import MaterialisedWarning
from nres.system import at_least_single


class LazyMatrix(eqx.Module):
    """One lane's perturbed matrix."""

    base: Float[Array, "m n"]
    a: Float[Array, "m rank"]
    b: Float[Array, "n rank"]
    name: str = eqx.field(static=True)
    """The name of the leaf in `theta`, for warnings."""

    def formed(self) -> Array:
        """Return the matrix itself."""
        return _corrected(self.base, self.a, self.b)


def _is_lazy(x: Any) -> TypeGuard[LazyMatrix]:
    return isinstance(x, LazyMatrix)


def lazily(function: Callable) -> Callable:
    """Let a function take arguments with `Perturbed` leaves, without axes of lanes."""

    def called(*arguments: Any) -> Any:
        paths = jax.tree_util.tree_leaves_with_path(arguments, is_leaf=is_perturbed)
        values = [
            LazyMatrix(x.base, x.a, x.b, jax.tree_util.keystr(path[1:])) if is_perturbed(x) else x
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
        if not any(map(_is_lazy, inputs)):
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
        if _is_lazy(value):
            _warn(operation, value.name)
            value = value.formed()
        result.append(value)
    return result


@functools.cache
def _warn(operation: str, leaf: str) -> None:
    warnings.warn(
        f"the operation {operation} forms the perturbed matrix theta{leaf} of every lane, which "
        "takes memory and time; products, transposes and selections of rows do not form it.",
        MaterialisedWarning,
        stacklevel=2,
    )


def _corrected(rows: Array, a: Array, b: Array) -> Array:
    """Add the perturbation of some rows."""
    wide = at_least_single(rows.dtype)
    return (rows.astype(wide) + a.astype(wide) @ b.T.astype(wide)).astype(rows.dtype)


def _dot_general(left: Any, right: Any, *, dimension_numbers: Any, **params: Any) -> Any:
    """Multiply a matrix and an array, if one axis of each is summed over and no other paired."""
    (contracted, batch) = dimension_numbers
    both = _is_lazy(left) and _is_lazy(right)
    if both or len(contracted[0]) != 1 or batch[0] or params.get("out_sharding") is not None:
        return NotImplemented
    first = _is_lazy(left)
    matrix, x = (left, right) if first else (right, left)
    axis, other = contracted if first else contracted[::-1]
    dtype = params["preferred_element_type"] or matrix.base.dtype
    params = {**params, "preferred_element_type": at_least_single(jnp.dtype(dtype))}

    def product(w: Array, x: Array, axis: Any, other: Any) -> Array:
        pair, axes = ((w, x), (axis, other)) if first else ((x, w), (other, axis))
        return jax.lax.dot_general(*pair, (axes, ((), ())), **params)

    inner, outer = (matrix.a, matrix.b) if axis == (0,) else (matrix.b, matrix.a)
    base = product(matrix.base, x, axis, other)
    short = product(inner.astype(matrix.base.dtype), x, (0,), other)
    rank = (0,) if first else (short.ndim - 1,)
    return (base + product(outer.astype(short.dtype), short, (1,), rank)).astype(dtype)


def _transpose(x: LazyMatrix, *, permutation: Any) -> LazyMatrix:
    return x if tuple(permutation) == (0, 1) else LazyMatrix(x.base.T, x.b, x.a, x.name)


def _convert(x: LazyMatrix, *, new_dtype: Any, **params: Any) -> Any:
    if not jnp.issubdtype(new_dtype, jnp.floating):
        return NotImplemented
    base, a, b = (y.astype(new_dtype) for y in (x.base, x.a, x.b))
    return LazyMatrix(base, a, b, x.name)


def _multiply(x: Any, y: Any, **params: Any) -> Any:
    """Multiply a matrix by one number."""
    matrix, factor = (x, y) if _is_lazy(x) else (y, x)
    if _is_lazy(factor) or jnp.shape(factor) != ():
        return NotImplemented
    return LazyMatrix(factor * matrix.base, factor * matrix.a, matrix.b, matrix.name)


def _negative(x: LazyMatrix, **params: Any) -> LazyMatrix:
    return LazyMatrix(-x.base, -x.a, x.b, x.name)


def _same(x: LazyMatrix, **params: Any) -> LazyMatrix:
    return x


def _slice(x: LazyMatrix, *, start_indices: Any, limit_indices: Any, strides: Any) -> Any:
    if strides is not None:
        return NotImplemented
    (top, left), (bottom, right) = start_indices, limit_indices
    base = x.base[top:bottom, left:right]
    return LazyMatrix(base, x.a[top:bottom], x.b[left:right], x.name)


def _split(x: LazyMatrix, *, sizes: Any, axis: int) -> list[LazyMatrix]:
    parts, first = [], 0
    for size in sizes:
        keep = slice(first, first + size)
        base = x.base[keep] if axis == 0 else x.base[:, keep]
        a, b = (x.a[keep], x.b) if axis == 0 else (x.a, x.b[keep])
        parts.append(LazyMatrix(base, a, b, x.name))
        first += size
    return parts


def _squeeze(x: LazyMatrix, *, dimensions: Any) -> Array:
    return jax.lax.squeeze(x.formed(), dimensions)  # one row or column, which is small


def _dynamic_slice(x: Any, row: Any, column: Any, *, slice_sizes: Any) -> Any:
    if not _is_lazy(x) or slice_sizes[1] != x.base.shape[1]:
        return NotImplemented
    cut = jax.lax.dynamic_slice_p.bind
    a = cut(x.a, row, column, slice_sizes=(slice_sizes[0], x.a.shape[1]))
    return LazyMatrix(cut(x.base, row, column, slice_sizes=slice_sizes), a, x.b, x.name)


def _gather(x: Any, indices: Any, *, dimension_numbers: Any, **params: Any) -> Any:
    """Select whole rows."""
    numbers = dimension_numbers
    if not _is_lazy(x) or params["slice_sizes"] != (1, x.base.shape[1]):
        return NotImplemented
    rows = numbers.start_index_map == numbers.collapsed_slice_dims == (0,)
    if not rows or numbers.operand_batching_dims:
        return NotImplemented
    gather = functools.partial(jax.lax.gather_p.bind, dimension_numbers=numbers)
    base = gather(x.base, indices, **params)
    # Rows that are filled in are not perturbed.
    blank = None if params.get("fill_value") is None else 0
    short = {**params, "slice_sizes": (1, x.a.shape[1]), "fill_value": blank}
    (axis,) = numbers.offset_dims  # where the columns of the result are
    last = functools.partial(jnp.moveaxis, source=axis, destination=-1)
    factors = last(gather(x.a, indices, **short))
    return jnp.moveaxis(_corrected(last(base), factors, x.b), -1, axis)


def _scan(*values: Any, jaxpr: Any, num_consts: int, num_carry: int, **params: Any) -> Any:
    """Run a loop whose constants may be lazy; matrices that it carries or reads are formed."""
    constants, rest = values[:num_consts], _formed("scan", values[num_consts:])

    def body(carry, x):
        results = _formed("scan", _carried_out(jaxpr, [*constants, *carry, *x]))
        return results[:num_carry], results[num_carry:]

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    carry, collected = jax.lax.scan(body, rest[:num_carry], rest[num_carry:], **options)
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
    if _is_lazy(index):
        return NotImplemented
    results = [_formed("cond", _carried_out(branch, values)) for branch in branches]
    index = jnp.clip(jnp.asarray(index, jnp.int32), 0, len(branches) - 1)
    return [jax.lax.select_n(index, *cases) for cases in zip(*results, strict=True)]


RULES: dict[str, Callable] = {
    "dot_general": _dot_general,
    "transpose": _transpose,
    "convert_element_type": _convert,
    "mul": _multiply,
    "neg": _negative,
    "copy": _same,
    "copy_p": _same,
    "stop_gradient": _same,
    "slice": _slice,
    "split": _split,
    "squeeze": _squeeze,
    "dynamic_slice": _dynamic_slice,
    "gather": _gather,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}
"""The cheap ways, by the names of operations; they return `NotImplemented` where there is none."""
