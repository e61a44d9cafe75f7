"""Tasks for learned optimizers: models and the data to train them on."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from nres.checks import check_batch
from nres.data import Images, cifar10, fashion_mnist, grey
from nres.systems.learned_optimizer.convolutional import init_convolutional
from nres.systems.learned_optimizer.dense import apply_dense, init_dense
from nres.systems.learned_optimizer.dispatch import (
    convolutional_gradient,
    convolutional_loss,
    dense_gradient,
    dense_loss,
)
from nres.systems.learned_optimizer.losses import LOSSES, mean_loss
from nres.systems.learned_optimizer.vectors import OfVector

Params: TypeAlias = PyTree[Float[Array, "..."]]
Batch: TypeAlias = PyTree[Array | np.ndarray]


class Task(eqx.Module):
    r"""A model, its loss and its data, for an optimizer to train.

    Args:
        init: A function from a random key to the model's parameters, a pytree of floating-point
            arrays.
        loss: A function from parameters and a batch to a scalar, whose gradient the optimizer gets.
        train: The training data, a pytree of arrays whose first axis numbers the examples.
        evaluated_on: The data on which the outer loss is computed, in the same form; by default,
            the training data.
        outer_loss: A function from parameters and a batch of `evaluated_on` to the loss of the
            optimizer itself, a scalar, differentiable or not; `loss` by default.
        batch: The number of examples per batch.
        gradient: A function from parameters and a batch to the gradient of `loss`;
            `jax.grad(loss)` by default.
        parts: If the data are several data sets, one after another: how many examples each has in
            `train` and in `evaluated_on`. Every episode then draws one of them.

    Raises:
        ValueError: If the arrays of the data differ in length, are shorter than a batch, or do not
            consist of these parts.

    Example:
        ```python
        def init(key):
            return {"w": jnp.zeros(3)}

        def loss(params, batch):
            x, y = batch
            return jnp.mean((x @ params["w"] - y) ** 2)

        task = Task(init, loss, train=(x[:800], y[:800]), evaluated_on=(x[800:], y[800:]), batch=32)
        ```
    """

    init: Callable[[Key[Array, ""]], Params] = eqx.field(static=True)
    loss: Callable[[Params, Batch], Float[Array, ""]] = eqx.field(static=True)
    outer_loss: Callable[[Params, Batch], Float[Array, ""]] = eqx.field(static=True)
    gradient: Callable[[Params, Batch], Params] = eqx.field(static=True)
    train: Batch
    evaluated_on: Batch
    batch: int = eqx.field(static=True)
    parts: tuple[tuple[int, int], ...] = eqx.field(static=True)

    def __init__(
        self,
        init: Callable[[Any], Params],
        loss: Callable[[Params, Batch], Any],
        train: Batch,
        *,
        evaluated_on: Batch | None = None,
        outer_loss: Callable[[Params, Batch], Any] | None = None,
        batch: int,
        gradient: Callable[[Params, Batch], Params] | None = None,
        parts: Sequence[tuple[int, int]] | None = None,
    ):
        self.gradient = jax.grad(loss) if gradient is None else gradient
        self.init, self.loss, self.outer_loss = init, loss, outer_loss or loss
        self.train = self.evaluated_on = jax.tree.map(jnp.asarray, train)
        if evaluated_on is not None:
            self.evaluated_on = jax.tree.map(jnp.asarray, evaluated_on)
        self.batch = batch
        check_batch(batch, train=self.train, evaluated_on=self.evaluated_on)
        self.parts = (self.sizes,) if parts is None else tuple(parts)
        whole = all(len(part) == 2 and min(part) > 0 for part in self.parts)
        if not whole or tuple(map(sum, zip(*self.parts, strict=True))) != self.sizes:
            raise ValueError(
                f"parts must be pairs of positive numbers that add up to the {self.sizes[0]:,} "
                f"examples of train and the {self.sizes[1]:,} of evaluated_on, got {self.parts}."
            )

    @property
    def sizes(self) -> tuple[int, int]:
        """The number of examples to train on, and to evaluate on."""
        train, evaluated_on = (jax.tree.leaves(x)[0] for x in (self.train, self.evaluated_on))
        return train.shape[0], evaluated_on.shape[0]

    def draw(
        self, key: Key[Array, ""], part: Int[Array, ""] | None
    ) -> tuple[Int[Array, " batch"], Int[Array, " batch"]]:
        """Draw the examples of one step, to train on and to evaluate on.

        Args:
            key: The key of the step.
            part: The number of the data set; `None` if there is only one.
        """
        sizes: Any = self.sizes
        if part is not None:
            sizes = jnp.asarray(self.parts, jnp.int32)[part]
        train, evaluated_on = (
            jax.random.randint(k, (self.batch,), 0, size, jnp.int32)
            for k, size in zip(jax.random.split(key), sizes, strict=True)
        )
        if part is None:
            return train, evaluated_on
        before = np.cumsum([(0, 0), *self.parts[:-1]], axis=0, dtype=np.int32)
        first = jnp.asarray(before)[part]
        return train + first[0], evaluated_on + first[1]


def classification(
    init: Callable[[Any], Params],
    apply: Callable[[Params, Float[Array, "batch ..."]], Float[Array, "batch classes"]],
    data: Images | Sequence[Images],
    *,
    batch: int,
    outer_loss: str = "cross-entropy",
    evaluated_on: str = "validation",
) -> Task:
    r"""Make a task of classifying images, trained by cross-entropy on the first 80 % of them.

    Args:
        init: A function from a random key to the model's parameters.
        apply: A function from parameters and images, with pixels from 0 to 1, to logits.
        data: The images in bytes, and their labels; or several such data sets with images of one
            size, of which every episode draws one.
        batch: The number of examples per batch.
        outer_loss: The loss of the optimizer itself: `"cross-entropy"`; `"capped"`, the
            cross-entropy of each example but at most $1.5 \ln 10$ (for ten classes); or
            `"accuracy"`, the fraction of misclassified examples, which has no gradient.
        evaluated_on: `"validation"`, the last 20 % of the images, or `"train"`.

    Returns:
        The task.

    Raises:
        ValueError: If `outer_loss` or `evaluated_on` is none of these.
    """
    return _classification(
        init,
        lambda what: functools.partial(mean_loss, apply, what),
        None,
        *(data, batch, outer_loss, evaluated_on),
    )


def _classification(
    init: Callable,
    loss: Callable[[str], Callable],
    gradient: Callable | None,
    data: Images | Sequence[Images],
    batch: int,
    outer_loss: str,
    evaluated_on: str,
) -> Task:
    """Make the task from `loss(what)`, a function for each loss, and optionally a fast gradient."""
    if outer_loss not in LOSSES:
        raise ValueError(f"outer_loss must be one of {', '.join(LOSSES)}; got {outer_loss!r}.")
    if evaluated_on not in ("validation", "train"):
        raise ValueError(f'evaluated_on must be "validation" or "train", got {evaluated_on!r}.')
    sets = [data] if isinstance(data, Images) else list(data)
    counts = [len(each.labels) * 4 // 5 for each in sets]
    train = [Images(*(x[:n] for x in each)) for each, n in zip(sets, counts, strict=True)]
    others = train
    if evaluated_on == "validation":
        others = [Images(*(x[n:] for x in each)) for each, n in zip(sets, counts, strict=True)]
    return Task(
        init,
        loss("cross-entropy"),
        _joined(train),
        evaluated_on=None if others is train else _joined(others),
        outer_loss=loss(outer_loss),
        batch=batch,
        gradient=gradient,
        parts=[(len(a.labels), len(b.labels)) for a, b in zip(train, others, strict=True)],
    )


def _joined(sets: Sequence[Images]) -> tuple[np.ndarray, np.ndarray]:
    if len({each.images.shape[1:] for each in sets}) != 1:
        raise ValueError("data must be data sets with images of one size.")
    images, labels = zip(*sets, strict=True)
    return np.concatenate(images), np.concatenate(labels)


# Options that earlier versions recorded in run folders, with their current names.
_OLD_NAMES = {"judge": "outer_loss", "judged_on": "evaluated_on"}


def _with_old_names(make: Callable[..., Task]) -> Callable[..., Task]:
    """Accept options by the names that earlier versions recorded, so that old runs load."""

    @functools.wraps(make)
    def renamed(**options: Any) -> Task:
        return make(**{_OLD_NAMES.get(name, name): value for name, value in options.items()})

    return renamed


@_with_old_names
def fashion_mnist_task(
    *,
    hidden: Sequence[int] = (32, 32, 32),
    size: int = 8,
    data_dir: str | Path | None = None,
    batch: int = 128,
    outer_loss: str = "cross-entropy",
    evaluated_on: str = "validation",
) -> Task:
    """Make a task of Fashion-MNIST and a perceptron with GeLU; the defaults are the paper's.

    Args:
        hidden: The sizes of the hidden layers.
        size: The width of the images: 8 (part of the package) or 28 (read from disk, see
            `nres.data`).
        data_dir: The folder of the original files; by default, the usual folders are searched.
        batch: The number of examples per batch.
        outer_loss: The loss of the optimizer itself, as for `classification`.
        evaluated_on: `"validation"` or `"train"`, as for `classification`.

    Returns:
        The task.
    """
    check_sizes("hidden", hidden)
    data = fashion_mnist(size, data_dir=data_dir)
    init = functools.partial(init_dense, (size * size, *hidden, 10))
    return _classification(
        init,
        lambda what: OfVector(functools.partial(dense_loss, what), is_gradient=False),
        OfVector(dense_gradient, is_gradient=True),
        *(data, batch, outer_loss, evaluated_on),
    )


@_with_old_names
def cifar10_task(
    *,
    blocks: int = 4,
    channels: int = 32,
    data_dir: str | Path | None = None,
    batch: int = 32,
    outer_loss: str = "capped",
    evaluated_on: str = "validation",
) -> Task:
    """Make a task of CIFAR-10 and a small convolutional network; the defaults are the paper's.

    Args:
        blocks: The number of blocks, from 1 to 5. Each is a 3 x 3 convolution, ReLU and 2 x 2
            average pooling.
        channels: The number of channels of each convolution.
        data_dir: The folder of the files; by default, the usual folders are searched.
        batch: The number of examples per batch.
        outer_loss: The loss of the optimizer itself, as for `classification`.
        evaluated_on: `"validation"` or `"train"`, as for `classification`.

    Returns:
        The task.
    """
    if not 1 <= blocks <= 5:
        raise ValueError(f"blocks must be from 1 to 5, got {blocks}: each halves the 32 pixels.")
    if channels < 1:
        raise ValueError(f"channels must be at least 1, got {channels}.")
    data = cifar10(data_dir=data_dir)
    init = functools.partial(init_convolutional, blocks, channels)
    return _classification(
        init,
        lambda what: functools.partial(convolutional_loss, what),
        convolutional_gradient,
        *(data, batch, outer_loss, evaluated_on),
    )


def small_images_task(
    *,
    data: Sequence[str] = ("fashion-mnist",),
    hidden: Sequence[int] = (32,),
    data_dir: str | Path | None = None,
    batch: int = 64,
    outer_loss: str = "cross-entropy",
    evaluated_on: str = "validation",
) -> Task:
    """Make a task of grey 8 x 8 images and a perceptron with ReLU; the defaults are Celo2's.

    Args:
        data: The data sets, as for `nres.data.grey`. Every episode draws one of them.
        hidden: The sizes of the hidden layers.
        data_dir: The folder of the data sets' files; by default, the usual folders are searched.
        batch: The number of examples per batch.
        outer_loss: The loss of the optimizer itself, as for `classification`.
        evaluated_on: `"validation"` or `"train"`, as for `classification`.

    Returns:
        The task.
    """
    if isinstance(data, str) or not data:
        raise ValueError(f'data must be a list of names, for example ["mnist"]; got {data!r}.')
    check_sizes("hidden", hidden)
    return classification(
        functools.partial(init_dense, (64, *hidden, 10)),
        functools.partial(apply_dense, activation=jax.nn.relu),
        [grey(name, data_dir=data_dir) for name in data],
        batch=batch,
        outer_loss=outer_loss,
        evaluated_on=evaluated_on,
    )


def check_sizes(name: str, sizes: Any) -> None:
    """Raise a `ValueError` unless `sizes` is a list of positive integers."""
    if not isinstance(sizes, Sequence) or not all(isinstance(n, int) and n > 0 for n in sizes):
        raise ValueError(f"{name} must be a list of sizes, for example [32, 32]; got {sizes!r}.")


def index_table(
    key: Key[Array, ""], steps: int, sizes: tuple[int, int], batch: int
) -> Int[np.ndarray, "steps 2 batch"]:
    """Draw the examples on which each step trains and evaluates, without repeats in a batch."""
    generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    return np.array(
        [[generator.choice(n, batch, replace=False) for n in sizes] for _ in range(steps)],
        np.int32,
    )
