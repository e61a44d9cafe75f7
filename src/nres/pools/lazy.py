r"""Matrices $W + A B^\top$ that act as arrays, without being formed.

`lazily` lets a function of parameters take `Perturbed` ones. Products with vectors and matrices,
transposes, conversions and selections of rows have rules here; under `jax.vmap` over lanes, the
product with $W$ becomes one large product for all lanes. Any other operation forms the lane's
matrix, and warns once.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import quax
from jaxtyping import Array, ArrayLike, Float

from nres.noise.factors import is_perturbed
from nres.pools.base import MaterialisedWarning
from nres.system import at_least_single


class LazyMatrix(quax.ArrayValue):
    """One lane's perturbed matrix."""

    base: Float[Array, "m n"]
    a: Float[Array, "m rank"]
    b: Float[Array, "n rank"]
    name: str = eqx.field(static=True)
    """The name of the leaf in `theta`, for warnings."""

    def aval(self) -> Any:
        return jax.core.ShapedArray(self.base.shape, self.base.dtype)

    def materialise(self) -> Array:
        return _corrected(self.base, self.a, self.b)

    @staticmethod
    def default(primitive, values, params):
        arrays = []
        for value in values:
            if isinstance(value, LazyMatrix):
                _warn(primitive.name, value.name)
                value = value.materialise()
            arrays.append(value)
        return primitive.bind(*arrays, **params)


@functools.cache
def _warn(operation: str, leaf: str) -> None:
    warnings.warn(
        f"the operation {operation} forms the perturbed matrix theta{leaf} of every lane, which "
        "takes memory and time; products, transposes and selections of rows do not form it.",
        MaterialisedWarning,
        stacklevel=2,
    )


def lazily(function: Callable) -> Callable:
    """Let a function take parameters with `Perturbed` leaves, without axes of lanes."""

    def called(*arguments: Any) -> Any:
        paths = jax.tree_util.tree_leaves_with_path(arguments, is_leaf=is_perturbed)
        names = iter(jax.tree_util.keystr(path[1:]) for path, x in paths if is_perturbed(x))
        given = jax.tree.map(
            lambda x: LazyMatrix(x.base, x.a, x.b, next(names)) if is_perturbed(x) else x,
            arguments,
            is_leaf=is_perturbed,
        )
        result = quax.quaxify(function)(*given)
        return jax.tree.map(
            lambda x: x.materialise() if isinstance(x, quax.Value) else x,
            result,
            is_leaf=lambda x: isinstance(x, quax.Value),
        )

    return called


def _corrected(rows: Array, a: Array, b: Array) -> Array:
    """Add the perturbation of some rows."""
    wide = at_least_single(rows.dtype)
    return (rows.astype(wide) + a.astype(wide) @ b.T.astype(wide)).astype(rows.dtype)


def _product(left: Any, right: Any, dimensions: Any, params: dict[str, Any]) -> Array:
    return jax.lax.dot_general(left, right, dimensions, **params)


def _exact(matrix: LazyMatrix, params: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return parameters for sums in at least single precision, and the dtype of the result."""
    dtype = params.get("preferred_element_type") or matrix.dtype
    return {**params, "preferred_element_type": at_least_single(jnp.dtype(dtype))}, dtype


@quax.register(jax.lax.dot_general_p)
def _(left: ArrayLike, right: LazyMatrix, *, dimension_numbers: Any, **params: Any) -> Any:
    ((contracted, (axis, *more)), (batch, _)) = dimension_numbers
    if batch or more:
        return _formed(jax.lax.dot_general_p, (left, right), dimension_numbers, params)
    inner, outer = (right.a, right.b) if axis == 0 else (right.b, right.a)
    wide, dtype = _exact(right, params)
    base = _product(left, right.base, ((contracted, (axis,)), ((), ())), wide)
    short = _product(left, inner.astype(right.dtype), ((contracted, (0,)), ((), ())), wide)
    last = (short.ndim - 1,)
    correction = _product(short, outer.astype(short.dtype), ((last, (1,)), ((), ())), wide)
    return (base + correction).astype(dtype)


@quax.register(jax.lax.dot_general_p)
def _(left: LazyMatrix, right: ArrayLike, *, dimension_numbers: Any, **params: Any) -> Any:
    (((axis, *more), contracted), (batch, _)) = dimension_numbers
    if batch or more:
        return _formed(jax.lax.dot_general_p, (left, right), dimension_numbers, params)
    inner, outer = (left.a, left.b) if axis == 0 else (left.b, left.a)
    wide, dtype = _exact(left, params)
    base = _product(left.base, right, (((axis,), contracted), ((), ())), wide)
    short = _product(inner.astype(left.dtype), right, (((0,), contracted), ((), ())), wide)
    correction = _product(outer.astype(short.dtype), short, (((1,), (0,)), ((), ())), wide)
    return (base + correction).astype(dtype)


def _formed(primitive: Any, values: Any, dimension_numbers: Any, params: dict[str, Any]) -> Any:
    params = {**params, "dimension_numbers": dimension_numbers}
    return LazyMatrix.default(primitive, values, params)


@quax.register(jax.lax.transpose_p)
def _(x: LazyMatrix, *, permutation: Any) -> LazyMatrix:
    if tuple(permutation) == (0, 1):
        return x
    return LazyMatrix(x.base.T, x.b, x.a, x.name)


@quax.register(jax.lax.convert_element_type_p)
def _(x: LazyMatrix, *, new_dtype: Any, **params: Any) -> Any:
    if not jnp.issubdtype(new_dtype, jnp.floating):
        return LazyMatrix.default(
            jax.lax.convert_element_type_p, (x,), {"new_dtype": new_dtype, **params}
        )
    base, a, b = (y.astype(new_dtype) for y in (x.base, x.a, x.b))
    return LazyMatrix(base, a, b, x.name)


@quax.register(jax.lax.slice_p)
def _(x: LazyMatrix, *, start_indices: Any, limit_indices: Any, strides: Any) -> Any:
    """Select whole rows by numbers that are known."""
    (first, left), (last, right) = start_indices, limit_indices
    if (left, right) != (0, x.shape[1]) or strides is not None:
        params = {"start_indices": start_indices, "limit_indices": limit_indices}
        return LazyMatrix.default(jax.lax.slice_p, (x,), params | {"strides": strides})
    return LazyMatrix(x.base[first:last], x.a[first:last], x.b, x.name)


@quax.register(jax.lax.squeeze_p)
def _(x: LazyMatrix, *, dimensions: Any) -> Array:
    """Turn a matrix of one row or column into a vector, which is small."""
    return jax.lax.squeeze(x.materialise(), dimensions)


@quax.register(jax.lax.dynamic_slice_p)
def _(x: LazyMatrix, row: ArrayLike, column: ArrayLike, *, slice_sizes: Any) -> Any:
    """Select consecutive whole rows, for embeddings."""
    rows, columns = slice_sizes
    if columns != x.shape[1]:
        return LazyMatrix.default(
            jax.lax.dynamic_slice_p, (x, row, column), {"slice_sizes": slice_sizes}
        )
    base = jax.lax.dynamic_slice_in_dim(x.base, row, rows)
    return _corrected(base, jax.lax.dynamic_slice_in_dim(x.a, row, rows), x.b)


@quax.register(jax.lax.gather_p)
def _(x: LazyMatrix, indices: ArrayLike, *, dimension_numbers: Any, **params: Any) -> Any:
    """Select whole rows, for embeddings."""
    rows = dimension_numbers.start_index_map == (0,) and params["slice_sizes"] == (1, x.shape[1])
    rows = rows and dimension_numbers.collapsed_slice_dims == (0,)
    rows = rows and not dimension_numbers.operand_batching_dims
    if not rows:
        return LazyMatrix.default(
            jax.lax.gather_p, (x, indices), {"dimension_numbers": dimension_numbers, **params}
        )
    gather = functools.partial(jax.lax.gather_p.bind, dimension_numbers=dimension_numbers)
    base = gather(x.base, indices, **params)
    rank = x.a.shape[1]
    factors = gather(x.a, indices, **{**params, "slice_sizes": (1, rank)})
    (axis,) = dimension_numbers.offset_dims  # where the columns of the result are
    last = functools.partial(jnp.moveaxis, source=axis, destination=-1)
    return jnp.moveaxis(_corrected(last(base), last(factors), x.b), -1, axis)
