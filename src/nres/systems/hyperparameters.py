"""Training runs with hyperparameters to tune: problems of the paper that introduced PES.

Vicol, Metz, Sohl-Dickstein, *Unbiased Gradient Estimation in Unrolled Computation Graphs with
Persistent Evolution Strategies*, ICML 2021. The networks are smaller than in the paper, and see the
images that are part of nres.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key, PyTree

from nres.data import fashion_mnist
from nres.systems.training_run import TrainingRun

# The largest outer loss of a step: that of a guess is ln 10 = 2.3.
_CAP = 10.0


def rate_and_decay(*, horizon: int = 5000, width: int = 32) -> TrainingRun:
    r"""Make a training run with two hyperparameters: a learning rate and the speed of its decay.

    A perceptron with two hidden layers learns to classify Fashion-MNIST at 8 x 8 pixels, by SGD
    with momentum 0.9, batches of 100, and the learning rate
    $e^{\theta_0} / (1 + t / 5000)^{e^{\theta_1}}$. The outer loss is the cross-entropy on another
    batch of the training data.

    Args:
        horizon: T, the number of training steps.
        width: The number of units per hidden layer.

    Returns:
        The system; its parameters are `log_rate` and `log_decay`.

    Example:
        ```python
        system = nres.systems.hyperparameters.rate_and_decay()
        estimator = nres.NRES(system, workers=10, window=10, sigma=0.1)
        ```
    """

    def optimizer(theta):
        def rate(t):
            return jnp.exp(theta["log_rate"]) * (1 + t / 5000) ** -jnp.exp(theta["log_decay"])

        return optax.sgd(rate, momentum=0.9)

    train, _ = _images()
    return TrainingRun(
        functools.partial(_init_mlp, sizes=(64, width, width, 10)),
        _mlp_loss,
        optimizer,
        {"log_rate": np.log(0.003), "log_decay": np.log(30.0)},
        train=train,
        validation=train,
        horizon=horizon,
        batch=100,
        cap=_CAP,
        test_runs=4,
    )


_HIDDEN = 5


def many_hyperparameters(*, horizon: int = 1000, width: int = 32) -> TrainingRun:
    r"""Make a training run with 29 hyperparameters: widths, learning rates and momenta.

    A perceptron with five hidden layers learns to classify Fashion-MNIST at 8 x 8 pixels with
    batches of 100. Hidden layer i keeps its first
    $\lfloor \mathrm{width} \cdot \mathrm{sigmoid}(\theta_i) \rfloor$ units. Each of the twelve
    tensors of weights and biases has its own learning rate and momentum. The outer loss is the
    cross-entropy on a batch of the validation data. The hyperparameters to start from are drawn
    at random: widths of 20 to 80 %, rates from 1e-4 to 1e-2, momenta from 0.01 to 0.9.

    Args:
        horizon: T, the number of training steps.
        width: The number of units per hidden layer before masking.

    Returns:
        The system; its parameters are the logits `mask` and `momentum`, and `log_rate`.

    Example:
        ```python
        system = nres.systems.hyperparameters.many_hyperparameters()
        theta = system.initial_theta(jax.random.key(0))
        estimator = nres.NRES(system, workers=5, window=10, sigma=0.3)
        ```
    """
    init = functools.partial(_init_mlp, sizes=(64, *[width] * _HIDDEN, 10))
    shapes = jax.eval_shape(init, jax.random.key(0))
    tensors, count = jax.tree.structure(shapes), len(jax.tree.leaves(shapes))

    def start(key):
        masks, rates, momenta = jax.random.split(key, 3)
        uniform = jax.random.uniform
        ends = [jax.scipy.special.logit(x) for x in (0.2, 0.8, 0.01, 0.9)]
        return {
            "mask": uniform(masks, (_HIDDEN,), minval=ends[0], maxval=ends[1]),
            "log_rate": uniform(rates, (count,), minval=np.log(1e-4), maxval=np.log(1e-2)),
            "momentum": uniform(momenta, (count,), minval=ends[2], maxval=ends[3]),
        }

    def optimizer(theta):
        rates, momenta = (
            jax.tree.unflatten(tensors, list(values))
            for values in (jnp.exp(theta["log_rate"]), jax.nn.sigmoid(theta["momentum"]))
        )

        def zeros(params):
            return jax.tree.map(jnp.zeros_like, params)

        def update(gradient, memory, params=None):
            memory = jax.tree.map(lambda m, old, g: m * old + g, momenta, memory, gradient)
            return jax.tree.map(lambda rate, x: -rate * x, rates, memory), memory

        return optax.GradientTransformation(zeros, update)

    def loss(params, batch, theta):
        return _mlp_loss(params, batch, theta, jnp.floor(width * jax.nn.sigmoid(theta["mask"])))

    train, validation = _images()
    return TrainingRun(
        init,
        loss,
        optimizer,
        start,
        train=train,
        validation=validation,
        horizon=horizon,
        batch=100,
        cap=_CAP,
        test_runs=10,
    )


def _images() -> tuple[PyTree, PyTree]:
    """Read the images as standardised vectors: 50,000 to train on, and the others to validate."""
    images, labels = fashion_mnist()
    x = images.reshape(len(images), -1) / np.float32(255)
    x = (x - x.mean()) / x.std()
    y = labels.astype(np.int32)
    return (x[:50_000], y[:50_000]), (x[50_000:], y[50_000:])


def _init_mlp(key: Key[Array, ""], sizes: tuple[int, ...]) -> PyTree:
    """Draw weights from truncated normal distributions, and set biases to zero."""
    return [
        {
            "w": jax.random.truncated_normal(k, -2.0, 2.0, (n, m)) / np.float32(np.sqrt(n)),
            "b": jnp.zeros(m),
        }
        for k, n, m in zip(
            jax.random.split(key, len(sizes) - 1), sizes[:-1], sizes[1:], strict=True
        )
    ]


def _mlp_loss(
    params: PyTree, batch: PyTree, theta: PyTree, kept: Float[Array, " layers"] | None = None
) -> Float[Array, ""]:
    """Compute the cross-entropy of a perceptron that keeps the first units of hidden layers."""
    x, labels = batch
    for number, layer in enumerate(params[:-1]):
        x = x @ layer["w"] + layer["b"][None]
        if kept is not None:
            units = jnp.arange(x.shape[-1], dtype=kept.dtype)
            x = jnp.where(units[None] < kept[number], x, 0)
        x = jax.nn.relu(x)
    logits = x @ params[-1]["w"] + params[-1]["b"][None]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


class RidgePenalty(TrainingRun):
    r"""A training run with one hyperparameter: the L2 penalty of a linear regression.

    Gradient descent at rate 0.001 minimises
    $\frac12 \|X w - y\|^2 + \frac12 e^\theta \|w\|^2$; the outer loss is $\frac12 \|X' w - y'\|^2$
    on other rows. In the long run w is the ridge estimate, so that the best $\theta$ is known. The
    data is synthetic: 15 rows to train on and 200 to validate, with 10 variables.

    Args:
        horizon: T, the number of training steps.
        start: The $\theta$ to start from.

    Example:
        ```python
        system = nres.systems.hyperparameters.RidgePenalty()
        system.best, system.limit(system.best)
        ```
    """

    best: float

    def __init__(self, horizon: int = 100_000, start: float = 5.0):
        draw = np.random.RandomState(1)  # its numbers are the same in every version of NumPy
        x = draw.normal(size=(215, 10))
        y = x @ draw.normal(0, 0.5, 10) + draw.normal(size=215)
        x, y = x.astype(np.float32), y.astype(np.float32)
        super().__init__(
            _ridge_weights,
            _penalised,
            _ridge_optimizer,
            {"log_penalty": float(start)},
            train=(x[:15], y[:15]),
            validation=(x[15:], y[15:]),
            horizon=horizon,
            outer_loss=_squares,
        )
        grid = np.linspace(-8, 8, 16_001)
        limits = jax.vmap(self.limit)(jnp.asarray(grid, jnp.float32))
        self.best = float(grid[int(jnp.argmin(limits))])

    def limit(self, log_penalty: Float[Array, ""] | float) -> Float[Array, ""]:
        """Compute the outer loss after endless training, at the ridge estimate.

        Args:
            log_penalty: The logarithm of the penalty.
        """
        x, y = self.train
        square = x.T @ x + jnp.exp(log_penalty) * jnp.eye(x.shape[1])
        return _squares(jnp.linalg.solve(square, x.T @ y), self.validation, None)

    def metrics(self, theta: PyTree, key: Key[Array, ""]) -> dict[str, Array]:
        """Return the distance to the best parameter, the parameter, and the outer loss in the end.

        Args:
            theta: The hyperparameters.
            key: Not used.
        """
        found = theta["log_penalty"]
        distance = jnp.abs(found - self.best)
        return {"distance": distance, "log_penalty": found, "loss": self.limit(found)}

    @property
    def metrics_steps(self) -> int:  # type: ignore[override]
        """The number of unroll steps in `metrics`: none, so one as the least that counts."""
        return 1


def _ridge_weights(key: Key[Array, ""]) -> Float[Array, "10"]:
    return jax.random.normal(key, (10,))


def _ridge_optimizer(theta: PyTree) -> optax.GradientTransformation:
    return optax.sgd(1e-3)


def _squares(w: Array, batch: PyTree, theta: PyTree) -> Float[Array, ""]:
    x, y = batch
    return 0.5 * jnp.sum((x @ w - y) ** 2)


def _penalised(w: Array, batch: PyTree, theta: PyTree) -> Float[Array, ""]:
    return _squares(w, batch, theta) + 0.5 * jnp.exp(theta["log_penalty"]) * jnp.sum(w**2)
