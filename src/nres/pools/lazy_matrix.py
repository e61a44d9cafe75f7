r"""One lane's matrix $W + A B^\top$, and the operations on it that do not form it.

Under `jax.vmap` over lanes that share $W$, the product with $W$ becomes one large product for all
lanes, beside a small one per lane with $A$ and $B$.
"""

import functools
import string
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nres.system import at_least_single


class LazyMatrix(eqx.Module):
    """One lane's perturbed matrix, whose rows and columns may have several axes."""

    base: Float[Array, "*shape"]
    a: Float[Array, "*rows rank"]
    b: Float[Array, "*columns rank"]
    rows: tuple[int, ...] = eqx.field(static=True)
    """The axes of `base` that `a` has, in ascending order; `b` has the others."""
    name: str = eqx.field(static=True)
    """The name of the leaf in `theta`, for warnings."""

    @property
    def columns(self) -> tuple[int, ...]:
        return tuple(i for i in range(self.base.ndim) if i not in self.rows)

    def formed(self) -> Array:
        """Return the matrix itself."""
        return _corrected(self.base, self.a, self.b, self.rows)

    def each(self, function: Callable) -> tuple[Any, Any, Any]:
        """Apply `function(array, axes)` to the matrix and both factors, given the axes of each."""
        every = tuple(range(self.base.ndim))
        base = function(self.base, every)
        return base, function(self.a, self.rows), function(self.b, self.columns)

    def without(self, axes: Sequence[int], base: Array, a: Array, b: Array) -> Any:
        """Drop axes; form the result if only one factor has axes left."""
        left = [i for i in range(self.base.ndim) if i not in axes]
        rows = tuple(new for new, old in enumerate(left) if old in self.rows)
        if not rows or len(rows) == len(left):
            return _corrected(base, a, b, rows)
        return LazyMatrix(base, a, b, rows, self.name)


def is_lazy(x: Any) -> TypeGuard[LazyMatrix]:
    """Return true if `x` is a matrix that is not formed."""
    return isinstance(x, LazyMatrix)


def _letters(axes: Sequence[int]) -> str:
    """Name axes for `jnp.einsum`, where Z is the axis of the rank."""
    return "".join(string.ascii_letters[i] for i in axes)


def _corrected(base: Array, a: Array, b: Array, rows: Sequence[int]) -> Array:
    """Add the perturbation; `rows` are the axes that `a` has."""
    wide = at_least_single(base.dtype)
    columns = [i for i in range(base.ndim) if i not in rows]
    names = f"{_letters(rows)}Z,{_letters(columns)}Z->{_letters(range(base.ndim))}"
    product = jnp.einsum(names, a.astype(wide), b.astype(wide))
    return (base.astype(wide) + product).astype(base.dtype)


def _dot_general(left: Any, right: Any, *, dimension_numbers: Any, **params: Any) -> Any:
    """Multiply a matrix and an array, if only rows or only columns are summed over."""
    first = is_lazy(left)
    matrix, x = (left, right) if first else (right, left)
    (summed, of_x), (paired, with_x) = (pair if first else pair[::-1] for pair in dimension_numbers)
    if is_lazy(x) or not summed or params.get("out_sharding") is not None:
        return NotImplemented
    # The factor that has the axes to sum over comes first: only the rank is left of it.
    factors = [(matrix.a, matrix.rows), (matrix.b, matrix.columns)]
    (near, of_near), (far, of_far) = factors if set(summed) <= set(matrix.rows) else factors[::-1]
    if not set(summed) <= set(of_near):
        return NotImplemented
    with jax.numpy_dtype_promotion("standard"):  # as the product itself promotes
        common = jnp.promote_types(matrix.base.dtype, x.dtype)
    dtype = params.pop("preferred_element_type") or common
    wide = at_least_single(jnp.dtype(dtype))
    # Axes of x that are summed over or paired have the names of the matrix's axes.
    gone = dict(zip((*of_x, *with_x), (*summed, *paired), strict=True))
    axes_of_x = [gone.get(i, matrix.base.ndim + i) for i in range(x.ndim)]

    def free(axes: Sequence[int]) -> str:
        return _letters([i for i in axes if i not in gone.values()])

    def in_order(of_matrix: str, of_x: str) -> str:
        return _letters(paired) + (of_matrix + of_x if first else of_x + of_matrix)

    def product(names: str, factor: Array, other_names: str, other: Array, result: str) -> Array:
        pair = [(names, factor), (other_names, other)][:: 1 if first else -1]
        return jnp.einsum(
            f"{pair[0][0]},{pair[1][0]}->{result}",
            *(pair[0][1], pair[1][1]),
            precision=params["precision"],
            preferred_element_type=wide,
        )

    # Sums of half-precision products are in single precision, and are stored in half.
    base = jax.lax.dot_general(
        *((matrix.base, x) if first else (x, matrix.base)),
        dimension_numbers,
        preferred_element_type=dtype,
        **params,
    )
    middle = in_order(free(of_near) + "Z", free(axes_of_x))
    result = in_order(free(range(matrix.base.ndim)), free(axes_of_x))
    short = product(
        *(_letters(of_near) + "Z", near.astype(common)),
        *(_letters(axes_of_x), x.astype(common)),
        middle,
    )
    change = product(_letters(of_far) + "Z", far.astype(wide), middle, short, result)
    return (base.astype(wide) + change).astype(dtype)


def _convolve(x: Any, kernel: Any, *, dimension_numbers: Any, **params: Any) -> Any:
    """Convolve with a kernel that has its output channels alone in one factor."""
    channels = dimension_numbers.rhs_spec[0]
    if is_lazy(x) or params["feature_group_count"] != 1 or params["batch_group_count"] != 1:
        return NotImplemented
    if kernel.rows == (channels,):
        near, far = kernel.b, kernel.a
    elif kernel.columns == (channels,):
        near, far = kernel.a, kernel.b
    else:
        return NotImplemented
    dtype = params.pop("preferred_element_type") or kernel.base.dtype
    convolve = functools.partial(
        jax.lax.conv_general_dilated_p.bind,
        dimension_numbers=dimension_numbers,
        **params,
    )
    wide = at_least_single(jnp.dtype(dtype))
    base = convolve(x, kernel.base, preferred_element_type=dtype)
    near = jnp.moveaxis(near, -1, channels).astype(kernel.base.dtype)
    short = convolve(x, near, preferred_element_type=wide)
    axis = dimension_numbers.out_spec[1]
    precision = params["precision"]  # of the image and of the kernel
    change = jnp.matmul(
        jnp.moveaxis(short, axis, -1),
        far.T.astype(short.dtype),
        precision=precision[0] if isinstance(precision, tuple) else precision,
    )
    return (base.astype(wide) + jnp.moveaxis(change, -1, axis)).astype(dtype)


def _transpose(x: LazyMatrix, *, permutation: Any) -> LazyMatrix:
    def permuted(array: Array, axes: tuple[int, ...]) -> Array:
        order = [axes.index(i) for i in permutation if i in axes]
        return jnp.transpose(array, (*order, *range(len(axes), array.ndim)))

    rows = tuple(new for new, old in enumerate(permutation) if old in x.rows)
    return LazyMatrix(*x.each(permuted), rows, x.name)


def _convert(x: LazyMatrix, *, new_dtype: Any, **params: Any) -> Any:
    if not jnp.issubdtype(new_dtype, jnp.floating):
        return NotImplemented
    return LazyMatrix(*x.each(lambda y, axes: y.astype(new_dtype)), x.rows, x.name)


def _multiply(x: Any, y: Any, **params: Any) -> Any:
    """Multiply a matrix by one number."""
    matrix, factor = (x, y) if is_lazy(x) else (y, x)
    if is_lazy(factor) or jnp.shape(factor) != ():
        return NotImplemented
    return LazyMatrix(factor * matrix.base, factor * matrix.a, matrix.b, matrix.rows, matrix.name)


def _negative(x: LazyMatrix, **params: Any) -> LazyMatrix:
    return LazyMatrix(-x.base, -x.a, x.b, x.rows, x.name)


def _same(x: LazyMatrix, **params: Any) -> LazyMatrix:
    return x


def _slice(x: LazyMatrix, *, start_indices: Any, limit_indices: Any, strides: Any) -> Any:
    every = list(map(slice, start_indices, limit_indices, strides or [1] * x.base.ndim))
    return LazyMatrix(*x.each(lambda y, axes: y[tuple(every[i] for i in axes)]), x.rows, x.name)


def _split(x: LazyMatrix, *, sizes: Any, axis: int) -> list[LazyMatrix]:
    parts, first = [], 0
    for size in sizes:
        start, end = [0] * x.base.ndim, list(x.base.shape)
        start[axis], end[axis] = first, first + size
        parts.append(_slice(x, start_indices=start, limit_indices=end, strides=None))
        first += size
    return parts


def _squeeze(x: LazyMatrix, *, dimensions: Any) -> Any:
    def squeezed(array: Array, axes: tuple[int, ...]) -> Array:
        return jax.lax.squeeze(array, [k for k, i in enumerate(axes) if i in dimensions])

    return x.without(dimensions, *x.each(squeezed))


def _dynamic_slice(x: Any, *starts: Any, slice_sizes: Any) -> Any:
    if not is_lazy(x):
        return NotImplemented

    def cut(array: Array, axes: tuple[int, ...]) -> Array:
        behind = array.shape[len(axes) :]
        first = [starts[i] for i in axes] + [jnp.zeros_like(starts[0])] * len(behind)
        sizes = *(slice_sizes[i] for i in axes), *behind
        return jax.lax.dynamic_slice_p.bind(array, *first, slice_sizes=sizes)

    return LazyMatrix(*x.each(cut), x.rows, x.name)


def _gather(x: Any, indices: Any, *, dimension_numbers: Any, **params: Any) -> Any:
    """Select parts along the first axis."""
    numbers = dimension_numbers
    if not is_lazy(x) or params["slice_sizes"] != (1, *x.base.shape[1:]):
        return NotImplemented
    along = numbers.start_index_map == numbers.collapsed_slice_dims == (0,)
    if not along or numbers.operand_batching_dims:
        return NotImplemented
    new = indices.ndim - 1  # the number of axes that the selection has instead of the first one

    def selected(array: Array, axes: tuple[int, ...]) -> Array:
        """Select from what has the first axis, with the new axes in front."""
        if 0 not in axes:
            return array
        fill = params.get("fill_value")
        if array is not x.base and fill is not None:
            fill = 0  # parts that are filled in are not perturbed
        return jax.lax.gather_p.bind(
            array,
            indices,
            dimension_numbers=numbers._replace(offset_dims=tuple(range(new, new + array.ndim - 1))),
            **{**params, "slice_sizes": (1, *array.shape[1:]), "fill_value": fill},
        )

    parts = x.each(selected)
    if new == 0:
        return x.without((0,), *parts)
    rows = tuple(i + new - 1 for i in x.rows if i)
    matrix = LazyMatrix(*parts, (*range(new), *rows) if 0 in x.rows else rows, x.name)
    last = tuple(range(new, matrix.base.ndim))
    if x.base.ndim > 2 and numbers.offset_dims == last:
        return matrix
    # A table of vectors is no larger than what is computed from it.
    return jnp.moveaxis(matrix.formed(), last, numbers.offset_dims)


OPERATIONS: dict[str, Callable] = {
    "dot_general": _dot_general,
    "conv_general_dilated": _convolve,
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
}
"""Rules that do not form the matrix, by the names of operations; they return `NotImplemented` where
that is not possible."""
