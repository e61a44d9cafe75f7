"""What a learned optimizer trains: models and data."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from nres.data import Images, cifar10, fashion_mnist
from nres.systems.learned_optimizer.convolutional import (
    convolutional_gradient,
    convolutional_loss,
    init_convolutional,
)
from nres.systems.learned_optimizer.dense import dense_gradient, dense_loss, init_dense
from nres.systems.learned_optimizer.losses import LOSSES, mean_loss

Params: TypeAlias = PyTree[Float[Array, "..."]]
Batch: TypeAlias = PyTree[Array | np.ndarray]


class Task(eqx.Module):
    r"""A model to train, as an optimizer sees it.

    ```python
    def init(key):
        return {"w": jnp.zeros(3)}

    def loss(params, batch):
        x, y = batch
        return jnp.mean((x @ params["w"] - y) ** 2)

    task = Task(init, loss, train=(x[:800], y[:800]), judged_on=(x[800:], y[800:]), batch=32)
    ```

    **Arguments:**

    - `init`: maps a random key to the model's parameters, a pytree of floating-point arrays.
    - `loss`: maps parameters and a batch to a scalar; its gradient is what the optimizer gets.
    - `train`: the data, a pytree of arrays whose first axis numbers the examples.
    - `judged_on`: the data on which the optimizer's own loss is computed, in the same form; the
        training data by default.
    - `judge`: maps parameters and a batch of `judged_on` to the optimizer's own loss, a scalar,
        differentiable or not; `loss` by default.
    - `batch`: how many examples each batch has.
    - `gradient`: maps parameters and a batch to the gradient of `loss`, where there is a faster
        way to it than `jax.grad`.
    """

    init: Callable[[Key[Array, ""]], Params] = eqx.field(static=True)
    loss: Callable[[Params, Batch], Float[Array, ""]] = eqx.field(static=True)
    judge: Callable[[Params, Batch], Float[Array, ""]] = eqx.field(static=True)
    gradient: Callable[[Params, Batch], Params] = eqx.field(static=True)
    train: Batch
    judged_on: Batch
    batch: int = eqx.field(static=True)

    def __init__(
        self,
        init: Callable[[Any], Params],
        loss: Callable[[Params, Batch], Any],
        train: Batch,
        *,
        judged_on: Batch | None = None,
        judge: Callable[[Params, Batch], Any] | None = None,
        batch: int,
        gradient: Callable[[Params, Batch], Params] | None = None,
    ):
        self.gradient = jax.grad(loss) if gradient is None else gradient
        self.init, self.loss, self.judge = init, loss, judge or loss
        self.train = jax.tree.map(jnp.asarray, train)
        self.judged_on = self.train if judged_on is None else jax.tree.map(jnp.asarray, judged_on)
        self.batch = batch
        for name, data in (("train", self.train), ("judged_on", self.judged_on)):
            sizes = {leaf.shape[0] if leaf.ndim else 0 for leaf in jax.tree.leaves(data)}
            if len(sizes) != 1:
                raise ValueError(
                    f"{name} must be arrays with one example in each row, as many in all of them; "
                    f"got {sorted(sizes)} rows."
                )
            if not 1 <= batch <= min(sizes):
                raise ValueError(
                    f"batch must be from 1 to the number of examples, got {batch} and "
                    f"{min(sizes)} examples in {name}."
                )

    @property
    def sizes(self) -> tuple[int, int]:
        """How many examples there are to train and to judge on."""
        return jax.tree.leaves(self.train)[0].shape[0], jax.tree.leaves(self.judged_on)[0].shape[0]


def classification(
    init: Callable[[Any], Params],
    apply: Callable[[Params, Float[Array, "batch ..."]], Float[Array, "batch classes"]],
    data: Images,
    *,
    batch: int,
    judge: str = "cross-entropy",
    judged_on: str = "validation",
) -> Task:
    r"""Images to classify: trained by cross-entropy on the first 80 % of them.

    **Arguments:**

    - `init`, `apply`: the model; `apply` maps parameters and images, with pixels from 0 to 1, to
        logits.
    - `data`: images in bytes, and labels.
    - `batch`: the size of a batch.
    - `judge`: the optimizer's own loss: `"cross-entropy"`; `"capped"`, the cross-entropy of each
        example but at most $1.5 \ln 10$ (of ten classes); or `"accuracy"`, the share of examples
        misclassified, which has no gradient.
    - `judged_on`: `"validation"`, the last 20 % of the images, or `"train"`.
    """
    return _classification(
        init, functools.partial(mean_loss, apply), None, data, batch, judge, judged_on
    )


def _classification(
    init: Callable,
    loss: Callable[..., Any],
    gradient: Callable | None,
    data: Images,
    batch: int,
    judge: str,
    judged_on: str,
) -> Task:
    """The same, from `loss(what, params, batch)` and perhaps a fast way to its gradient."""
    if judge not in LOSSES:
        raise ValueError(f"judge must be one of {', '.join(LOSSES)}; got {judge!r}.")
    if judged_on not in ("validation", "train"):
        raise ValueError(f'judged_on must be "validation" or "train", got {judged_on!r}.')
    count = len(data.labels) * 4 // 5
    return Task(
        init,
        functools.partial(loss, "cross-entropy"),
        (data.images[:count], data.labels[:count]),
        judged_on=(data.images[count:], data.labels[count:]) if judged_on == "validation" else None,
        judge=functools.partial(loss, judge),
        batch=batch,
        gradient=gradient,
    )


def fashion_mnist_task(
    *,
    hidden: Sequence[int] = (32, 32, 32),
    size: int = 8,
    data_dir: str | Path | None = None,
    batch: int = 128,
    judge: str = "cross-entropy",
    judged_on: str = "validation",
) -> Task:
    """Fashion-MNIST and a perceptron with GeLU; by default the paper's, on 8 x 8 pixels.

    **Arguments:**

    - `hidden`: the sizes of the hidden layers.
    - `size`: of the images, 8 (in the package) or 28 (found on disk, see `nres.data`).
    - `data_dir`: where to look for the original files.
    - `batch`, `judge`, `judged_on`: as for `classification`.
    """
    if not isinstance(hidden, Sequence) or not all(isinstance(n, int) and n > 0 for n in hidden):
        raise ValueError(f"hidden must be a list of sizes such as [32, 32], got {hidden!r}.")
    data = fashion_mnist(size, data_dir=data_dir)
    init = functools.partial(init_dense, (size * size, *hidden, 10))
    return _classification(init, dense_loss, dense_gradient, data, batch, judge, judged_on)


def cifar10_task(
    *,
    blocks: int = 4,
    channels: int = 32,
    data_dir: str | Path | None = None,
    batch: int = 32,
    judge: str = "capped",
    judged_on: str = "validation",
) -> Task:
    """CIFAR-10 and a small convolutional network; by default the paper's.

    **Arguments:**

    - `blocks`, `channels`: each block is a 3 x 3 convolution, ReLU and 2 x 2 average pooling.
    - `data_dir`: where to look for the files, see `nres.data`.
    - `batch`, `judge`, `judged_on`: as for `classification`.
    """
    if not 1 <= blocks <= 5:
        raise ValueError(f"blocks must be from 1 to 5, got {blocks}: each halves the 32 pixels.")
    if channels < 1:
        raise ValueError(f"channels must be at least 1, got {channels}.")
    data = cifar10(data_dir=data_dir)
    init = functools.partial(init_convolutional, blocks, channels)
    return _classification(
        init, convolutional_loss, convolutional_gradient, data, batch, judge, judged_on
    )


def index_table(
    key: Key[Array, ""], steps: int, sizes: tuple[int, int], batch: int
) -> Int[np.ndarray, "steps 2 batch"]:
    """Which examples each step trains on and is judged on; none twice within a batch."""
    generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    return np.array(
        [[generator.choice(n, batch, replace=False) for n in sizes] for _ in range(steps)],
        np.int32,
    )
