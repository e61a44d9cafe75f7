"""Perturbed matrices that act as arrays: every operation against the formed matrix."""

import functools
import math
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

import nres
from helpers import normal, slow, slow_except
from nres.noise.factors import Perturbed
from nres.noise.low_rank import split_shape
from nres.pools import MaterialisedWarning
from nres.pools.lazy import lazily


def perturbed(shape, dtype=float, rank=2, lanes=()):
    """A perturbed array whose first or last axis stands alone."""
    rows, columns = split_shape(shape)
    a, b = ((*lanes, *part, rank) for part in (rows, columns))
    return Perturbed(
        *(normal(0, shape, dtype), normal(1, a, dtype), normal(2, b, dtype)),
        jnp.asarray(-1, dtype),
    )


def matrix(dtype=float):
    return perturbed((5, 7), dtype)


@jax.custom_vjp
def own_derivative(x):
    return jnp.sin(x)


own_derivative.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g,))

# Operations on a 5 x 7 matrix w, with vectors and matrices x of suitable sizes.
OPERATIONS = {
    "row times matrix": lambda w: normal(3, (5,), w.dtype) @ w,
    "rows times matrix": lambda w: normal(3, (4, 5), w.dtype) @ w,
    "matrix times column": lambda w: w @ normal(3, (7,), w.dtype),
    "matrix times columns": lambda w: w @ normal(3, (7, 3), w.dtype),
    "transposed": lambda w: w.T @ normal(3, (5, 2), w.dtype),
    "row times transposed": lambda w: normal(3, (2, 7), w.dtype) @ w.T,
    "many axes": lambda w: jnp.einsum("abi,ij->abj", normal(3, (2, 3, 5), w.dtype), w),
    "matrix in front": lambda w: jnp.einsum("ij,abj->iab", w, normal(3, (2, 3, 7), w.dtype)),
    "one row": lambda w: w[2],
    "a drawn row": lambda w: w[jnp.argmax(normal(4, (5,)))],
    "several rows": lambda w: w[jnp.asarray([3, 0, 3])],
    "a table of rows": lambda w: w[jnp.asarray([[3, 0], [1, 4]])],
    "inside jit": lambda w: jax.jit(lambda w: normal(3, (5,), w.dtype) @ w)(w),
    "inside scan": lambda w: jax.lax.scan(
        lambda s, _: (jnp.tanh((w @ s)[:5] @ w), None), normal(3, (7,), w.dtype), length=3
    )[0],
    "scaled": lambda w: normal(3, (5,), w.dtype) @ (-0.5 * w),
    "split": lambda w: normal(3, (5,), w.dtype) @ jnp.split(w, [3], axis=1)[1],
    "inside while": lambda w: jax.lax.while_loop(
        lambda c: c[0] < 3,
        lambda c: (c[0] + 1, jnp.tanh((w @ c[1]) @ w)),
        (0, normal(3, (7,), w.dtype)),
    )[1],
    "inside a branch": lambda w: jax.lax.cond(
        w[0, 0] * 0 > 1, lambda x: x @ w, lambda x: x @ w * 2, normal(3, (5,), w.dtype)
    ),
    "own derivative": lambda w: own_derivative(normal(3, (5,), w.dtype) @ w),
    "recomputed": lambda w: jax.checkpoint(lambda w: normal(3, (5,), w.dtype) @ w)(w),
    "a row that is not there": lambda w: w[jnp.argmax(normal(4, (5,))) - 8],
    "rows filled in": lambda w: w.at[jnp.asarray([1, 9])].get(mode="fill", fill_value=5.0),
    "converted": lambda w: normal(3, (5,)).astype(jnp.float32) @ w.astype(jnp.float32),
    "with itself": lambda w: jnp.tanh(normal(3, (5,), w.dtype) @ w) @ w.T,
}


def convolved(x, kernel, layouts=("NHWC", "HWIO", "NHWC"), **options):
    return jax.lax.conv_general_dilated(
        *(x, kernel), window_strides=(2, 1), padding="SAME", dimension_numbers=layouts, **options
    )


def layers(x, weights):
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), x @ w), x, weights)


# Operations on arrays with more axes, with their shapes. In a table, the first axis stands alone.
STACK, TABLE, HEADS, KERNEL = (3, 5, 5), (40, 3, 3), (6, 2, 4), (3, 2, 4, 6)
LARGER = {
    "scan over layers": (STACK, lambda w: layers(normal(3, (2, 5), w.dtype), w)),
    "backwards": (
        STACK,
        lambda w: jax.lax.scan(
            lambda x, w: (w @ x, None), normal(3, (5,), w.dtype), w, reverse=True
        ),
    ),
    "one layer": (STACK, lambda w: normal(3, (5,), w.dtype) @ w[1]),
    "a drawn layer": (STACK, lambda w: normal(3, (5,), w.dtype) @ w[jnp.argmax(normal(4, (3,)))]),
    "chosen layers": (
        STACK,
        lambda w: jnp.einsum("kbi,kij->kbj", normal(3, (2, 4, 5), w.dtype), w[jnp.asarray([2, 0])]),
    ),
    "chosen from a table": (
        TABLE,
        lambda w: jnp.einsum(
            "kbi,kij->kbj", normal(3, (5, 4, 3), w.dtype), w[jnp.asarray([2, 0, 7, 1, 1])]
        ),
    ),
    "all layers": (
        STACK,
        lambda w: jnp.einsum("lbi,lij->lbj", normal(3, (3, 2, 5), w.dtype), w),
    ),
    "all layers, transposed": (
        STACK,
        lambda w: jnp.einsum("lij,lbj->bli", w, normal(3, (3, 2, 5), w.dtype)),
    ),
    "the same input": (STACK, lambda w: jnp.einsum("bi,lij->lbj", normal(3, (2, 5), w.dtype), w)),
    "mapped": (STACK, lambda w: jax.vmap(jnp.dot)(normal(3, (3, 2, 5), w.dtype), w)),
    "heads": (HEADS, lambda w: jnp.einsum("td,dhk->thk", normal(3, (3, 6), w.dtype), w)),
    "heads together": (
        (2, 4, 6),
        lambda w: jnp.einsum("thk,hkd->td", normal(3, (3, 2, 4), w.dtype), w),
    ),
    "one head": (HEADS, lambda w: normal(3, (3, 6), w.dtype) @ w[:, 1]),
    "every other input": (HEADS, lambda w: normal(3, (3, 3), w.dtype) @ w[::2, 0]),
    "axes in another order": (
        HEADS,
        lambda w: jnp.tensordot(w.transpose(1, 2, 0), normal(3, (6, 3), w.dtype), 1),
    ),
    "part of the axes": (HEADS, lambda w: w[2]),
    "convolution": (KERNEL, lambda w: convolved(normal(3, (2, 8, 7, 4), w.dtype), w)),
    "convolution, channels first": (
        (6, 4, 3, 2),
        lambda w: convolved(normal(3, (2, 4, 8, 7), w.dtype), w, ("NCHW", "OIHW", "NCHW")),
    ),
    "dilated convolution": (
        KERNEL,
        lambda w: convolved(normal(3, (2, 8, 7, 4), w.dtype), w, rhs_dilation=(2, 1)),
    ),
}
# Operations without a cheap way.
OTHERS = {
    "sum": lambda w: w.sum(),
    "element by element": lambda w: jnp.tanh(w),
    "columns": lambda w: w[:, jnp.asarray([1, 2])],
    "rows of a scan": lambda w: jax.lax.scan(lambda c, x: (c + x.sum(), x), w.sum() * 0, w),
    "carried": lambda w: jax.lax.fori_loop(0, 3, lambda i, c: 0.9 * c, w),
    "chosen": lambda w: jax.lax.cond(w.sum() > 0, lambda w: w, lambda w: 2 * w, w),
    "outer product": lambda w: jnp.einsum("ij,j->ij", w, normal(3, (7,), w.dtype)),
    "returned": lambda w: w,
    "both axes": lambda w: jnp.einsum("ij,ij->", w, normal(3, (5, 7), w.dtype)),
}


QUICK = (
    *("row times matrix", "matrix times columns", "row times transposed", "several rows"),
    *("inside scan", "inside a branch", "own derivative", "rows filled in"),
)


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("operation", slow_except(QUICK, OPERATIONS))
def test_operations_agree_with_the_formed_matrix(operation, x64):
    for dtype, tolerance in ((jnp.float64, 1e-12), (jnp.float32, 2e-5)):
        w = matrix(dtype)
        expected, found = operation(w.dense()), lazily(operation)(w)
        assert found.dtype == expected.dtype
        if found.dtype == jnp.float32:
            tolerance = 2e-5
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


QUICK_LARGER = ("scan over layers", "convolution")


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("case", slow_except(QUICK_LARGER, LARGER))
def test_arrays_with_more_axes_agree_and_lanes_share_them(case, x64):
    shape, operation = case
    for dtype, tolerance in ((jnp.float64, 1e-12), (jnp.float32, 2e-5)):
        w = perturbed(shape, dtype)
        found, expected = lazily(operation)(w), operation(w.dense())
        close = functools.partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance)
        jax.tree.map(close, found, expected)
    lanes = perturbed(shape, jnp.float32, lanes=(31,))

    def one(a, b):
        return lazily(operation)(Perturbed(w.base, a, b, w.sign))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = str(jax.make_jaxpr(jax.vmap(one))(lanes.a, lanes.b))
    sizes = [
        math.prod(map(int, found.split(","))) for found in re.findall(r"f32\[([\d,]+)\]", text)
    ]
    assert 31 * w.base.size not in sizes
    if shape == STACK:
        assert 31 * 5 * 5 not in sizes  # one layer
    if shape == TABLE:
        assert 31 * 5 * 3 * 3 not in sizes  # the chosen ones
    expected = jax.vmap(lambda a, b: operation(Perturbed(w.base, a, b, w.sign).dense()))(
        lanes.a, lanes.b
    )
    found = jax.vmap(one)(lanes.a, lanes.b)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    jax.tree.map(close, found, expected)


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize(
    "name",
    [
        "rows times matrix",
        *map(slow, sorted(OPERATIONS.keys() - {"rows times matrix", "several rows", "converted"})),
        "several rows",
    ],
)
def test_lanes_share_the_unperturbed_matrix(name):
    """Under vmap, no array of lanes times the size of the matrix exists."""
    w, lanes = matrix(jnp.float32), 31
    a, b = normal(5, (lanes, 5, 2), jnp.float32), normal(6, (lanes, 7, 2), jnp.float32)

    def one(a, b):
        return lazily(OPERATIONS[name])(Perturbed(w.base, a, b, w.sign))

    found = jax.vmap(one)(a, b)
    expected = jax.vmap(lambda a, b: OPERATIONS[name](Perturbed(w.base, a, b, w.sign).dense()))(
        a, b
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    text = str(jax.make_jaxpr(jax.vmap(one))(a, b))
    assert f"f32[{lanes},5,7]" not in text
    assert f"f32[{lanes},7,5]" not in text


@pytest.mark.parametrize("name", OTHERS)
def test_other_operations_form_the_matrix_and_warn(name):
    w = matrix(jnp.float32)
    nres.pools.lazy._warn.cache_clear()
    with pytest.warns(MaterialisedWarning, match=r"theta\['w'\]"):
        found = lazily(lambda theta: OTHERS[name](theta["w"]))({"w": w})
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5),
        found,
        OTHERS[name](w.dense()),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lazily(lambda theta: OTHERS[name](theta["w"]))({"w": w})


def test_inputs_of_another_precision_keep_the_noise():
    """A factor must not be rounded to the precision of an input: to integers, for example."""
    w = perturbed((5, 7), jnp.float32)
    small = Perturbed(w.base, 0.01 * w.a, w.b, w.sign)
    for dtype in (jnp.int8, jnp.bfloat16):
        x = jnp.arange(10).reshape(2, 5).astype(dtype)
        product = functools.partial(
            jax.lax.dot_general,
            dimension_numbers=(((1,), (0,)), ((), ())),
            preferred_element_type=jnp.float32,
        )
        found = lazily(lambda w, x=x, product=product: product(x, w))(small)
        expected = x.astype(jnp.float32) @ small.dense()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    half = Perturbed(*(y.astype(jnp.bfloat16) for y in (w.base, w.a, w.b, w.sign)))
    x = normal(3, (2, 5), jnp.float32)
    multiply = lambda w: jax.lax.dot_general(x, w, (((1,), (0,)), ((), ())))  # noqa: E731
    found = lazily(multiply)(half)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, x @ half.dense().astype(jnp.float32), rtol=0.05, atol=0.05)


def test_branches_of_other_platforms_are_not_carried_out():
    def other(w):
        return pl.pallas_call(lambda a, b: None, jax.ShapeDtypeStruct((7,), jnp.float32))(w)

    def step(w):
        return jax.lax.platform_dependent(w, cuda=other, default=lambda w: w.sum(axis=0))

    w = perturbed((5, 7), jnp.float32)
    with pytest.warns(MaterialisedWarning):
        found = jax.jit(lazily(step))(w)
    np.testing.assert_allclose(found, w.dense().sum(axis=0), rtol=1e-5)


def test_half_precision_sums_in_single_precision():
    """A perturbation below the spacing of bfloat16 numbers must not be lost in the sum."""
    n = 512
    base, x = jnp.ones((n, 2), jnp.bfloat16), jnp.ones((3, n), jnp.bfloat16)
    a, b = jnp.full((n, 1), 2.0**-7, jnp.bfloat16), jnp.ones((2, 1), jnp.bfloat16)
    found = lazily(lambda w: x @ w)(Perturbed(base, a, b, jnp.asarray(1, jnp.bfloat16)))
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found.astype(jnp.float32), 516.0)  # 512 + 4
