r"""Matrices in factored form: noise of low rank, and parameters perturbed by it.

A worker's noise for an $m \times n$ matrix is $A B^\top$ with $r$ columns in $A$ and in $B$, which
takes $(m + n)\, r$ numbers instead of $m n$. An array with more axes counts as a matrix whose rows
have several axes (`a` has these, and the rank behind them), or whose columns do. Nothing here forms
the matrix, except `full` and `dense`.
"""

import string
from typing import Any, TypeGuard

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from nres.system import at_least_single


class Factors(eqx.Module):
    r"""Matrices $A_i B_i^\top$, one per worker, in place of an array of rows."""

    a: Float[Array, "*workers_and_rows rank"]
    b: Float[Array, "*workers_and_columns rank"]

    def scaled(self, factor: Float[Array, " workers"]) -> "Factors":
        """Multiply each worker's matrix by a number."""
        if factor.ndim != 1:
            raise ValueError(
                "noise of low rank has one sigma per matrix: give sigma as numbers, not as arrays."
            )
        a = self.a.astype(at_least_single(self.a.dtype))
        return Factors(_per_worker(factor.astype(a.dtype), a), self.b)

    def weighted_sum(self, weights: Float[Array, " workers"]) -> Float[Array, "*shape"]:
        """Add up the matrices with weights, as one product of two matrices.

        Products of factors in bfloat16 are added up in single precision. Rounding the weighted
        factors changes a worker's part by less than 0.4%.
        """
        # The range of float16 is too small for weighted factors.
        dtype = self.a.dtype if self.a.dtype == jnp.bfloat16 else weights.dtype
        a = _per_worker(weights, self.a.astype(weights.dtype))
        total = jnp.einsum(
            "imr,inr->mn",
            _as_matrix(a.astype(dtype)),
            _as_matrix(self.b.astype(dtype)),
            # Full precision: the matrix units' short floats would lose three digits.
            precision=jax.lax.Precision.HIGHEST,
            preferred_element_type=weights.dtype,
        )
        return total.reshape(*self.a.shape[1:-1], *self.b.shape[1:-1])

    def squared_norms(self) -> Float[Array, " workers"]:
        """Return the squared Frobenius norm of each matrix."""
        wide = [_as_matrix(x.astype(at_least_single(x.dtype))) for x in (self.a, self.b)]
        first, second = (jnp.einsum("imr,ims->irs", x, x) for x in wide)
        return jnp.sum(first * second, axis=(1, 2))

    def full(self) -> Float[Array, "*workers_and_shape"]:
        """Return the matrices themselves."""
        product = jnp.einsum("imr,inr->imn", _as_matrix(self.a), _as_matrix(self.b))
        return product.reshape(*self.a.shape[:-1], *self.b.shape[1:-1])


def _per_worker(factor: Float[Array, " workers"], a: Array) -> Array:
    """Multiply the part of each worker by a number."""
    return jnp.expand_dims(factor, range(1, a.ndim)) * a


def _as_matrix(x: Array) -> Float[Array, "workers rows rank"]:
    """Join the axes between workers and rank."""
    return x.reshape(x.shape[0], -1, x.shape[-1])


class Perturbed(eqx.Module):
    r"""A matrix $W + s A B^\top$ of every unroll, of which all unrolls share $W$."""

    # Arrays; or, where axes are named, numbers and `None`.
    base: Any
    """W; its first axes are rows, the others columns."""
    a: Any
    """A, with an axis of workers in front."""
    b: Any
    """B, with an axis of workers in front."""
    sign: Any
    """s, one number per member: members differ in it alone."""

    def dense(self) -> Float[Array, "*lanes_and_shape"]:
        """Return the matrices themselves, added up in at least single precision."""
        wide = at_least_single(self.base.dtype)
        base, a, b, sign = (x.astype(wide) for x in (self.base, self.a, self.b, self.sign))
        workers = (a.ndim + b.ndim - base.ndim - 2) // 2  # the number of axes
        rows = a.ndim - workers - 1
        letters = string.ascii_lowercase[: base.ndim]
        product = jnp.einsum(f"...{letters[:rows]}Z,...{letters[rows:]}Z->...{letters}", a, b)
        product = jnp.tensordot(sign, product, axes=0)
        return (jnp.broadcast_to(base, product.shape) + product).astype(self.base.dtype)


class Shared(eqx.Module):
    """An array of which all unrolls have the same copy."""

    value: Any
    lanes: tuple[int, int] = eqx.field(static=True)
    """The numbers of members and of workers."""

    def dense(self) -> Float[Array, "*lanes m n"]:
        """Return a copy for each unroll."""
        return jnp.broadcast_to(self.value, (*self.lanes, *self.value.shape))


def is_factors(x: Any) -> TypeGuard[Factors]:
    """Return true if `x` stands for rows of matrices."""
    return isinstance(x, Factors)


def is_perturbed(x: Any) -> TypeGuard[Perturbed]:
    """Return true if `x` stands for a perturbed matrix."""
    return isinstance(x, Perturbed)


def has_perturbed(thetas: PyTree) -> bool:
    """Return true if some parameters are perturbed matrices in factored form."""
    return any(map(is_perturbed, jax.tree.leaves(thetas, is_leaf=is_perturbed)))


def dense(thetas: PyTree) -> PyTree:
    """Return parameters as arrays, whatever form they have."""
    return jax.tree.map(lambda x: x.dense() if is_form(x) else x, thetas, is_leaf=is_form)


def is_form(x: Any) -> TypeGuard[Perturbed | Shared]:
    """Return true if `x` stands for the same parameter of all unrolls."""
    return isinstance(x, Perturbed | Shared)


def moved_by(x: Float[Array, "*shape"], rows: Any) -> Any:
    """Return the sum of an array and each worker's noise, for one member."""
    if is_factors(rows):
        return Perturbed(x, rows.a.astype(x.dtype), rows.b.astype(x.dtype), jnp.ones(1, x.dtype))
    return (x[None] + rows.astype(x.dtype))[None]


def share(theta: PyTree, workers: int) -> PyTree:
    """Return the same parameters for every worker of one member, without copies."""
    return jax.tree.map(lambda x: Shared(x, (1, workers)), theta)


def unshared(theta: PyTree) -> PyTree:
    """Return the parameters of one lane, where all lanes share some."""
    is_shared = lambda x: isinstance(x, Shared)  # noqa: E731
    return jax.tree.map(lambda x: x.value if is_shared(x) else x, theta, is_leaf=is_shared)


def lanes_of(thetas: PyTree) -> tuple[int, int]:
    """Return the numbers of members and of workers of parameters."""
    first = jax.tree.leaves(thetas, is_leaf=is_form)[0]
    if isinstance(first, Shared):
        return first.lanes
    if is_perturbed(first):
        return first.sign.size, len(first.a)
    members, workers = first.shape[:2]
    return members, workers


def mapped_axes(thetas: PyTree, members: bool) -> PyTree:
    """Return the axes of parameters for `jax.vmap`, over members or over workers."""

    def axes(x):
        if isinstance(x, Shared):
            return None
        if is_perturbed(x):
            return Perturbed(None, None, None, 0) if members else Perturbed(None, 0, 0, None)
        return 0

    return jax.tree.map(axes, thetas, is_leaf=is_form)
