r"""`AdaptiveSigma`: a $\sigma$ that follows the derivative of the smoothed loss.

The smoothed loss $J(\theta, \sigma) = \mathbb E_\epsilon L(\theta + \epsilon)$ has the derivative

$$ \frac{\partial J}{\partial \log \sigma}
   = \mathbb E \Big[\Big(\frac{L^+ + L^-}2 - b\Big)
     \big(w(\epsilon) \cdot \epsilon - d\big)\Big], $$

where $w(\epsilon)$ is the score of the noise, which is $\epsilon/\sigma^2$ for Gaussian noise, d is
the number of parameters and b is any number that does not depend on $\epsilon$. The losses are
those of the pairs that estimate the gradient, so the derivative costs no unroll step. As for the
gradient, the sum over an episode is estimated window by window, and the factors of all noises of
an episode are added up.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from nres.checks import positive_arrays

# The decay of the running means of the slope, of its square, and of the losses of a window.
MEAN_DECAY, SQUARE_DECAY, LOSS_DECAY = 0.95, 0.99, 0.8


class AdaptiveSigma(eqx.Module):
    r"""A sigma that adapts during training, to lower the smoothed loss.

    After every estimate, $\log \sigma$ takes a step of at most about `rate` against the derivative
    of the smoothed loss, which the pairs give without further unroll steps. The direction is a
    running mean of this derivative relative to its size (as in Adam). A noise keeps the sigma
    with which it was drawn, so estimates stay unbiased.

    Sigma stays between `initial / span` and `initial * span`. Without these bounds it would
    vanish where the loss is convex, because there the unperturbed parameters have the lowest loss,
    and estimates become noisy if sigma is smaller than the roughness of the loss. It would grow
    without limit where the loss does not depend on the parameters.

    Pass it to an estimator as `sigma`. A single number adapts one sigma for all parameters; a
    pytree like `theta` or like its upper levels adapts one sigma for each of its elements.

    Args:
        initial: The sigma to begin with: a number, or a pytree of numbers or arrays that is a
            prefix of `theta`.
        rate: The largest relative change of sigma in one update, approximately.
        span: The largest factor between sigma and its initial value.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If an argument is not positive, or `span` is less than 1.

    Example:
        ```python
        sigma = nres.AdaptiveSigma({"weights": 0.1, "bias": 0.01})
        estimator = nres.NRES(system, workers=200, window=100, sigma=sigma)
        state = estimator.init(theta, key)
        print(state.adaptation.sigma)  # changes from estimate to estimate
        ```

    Reference:
        Sehnke et al., *Parameter-exploring policy gradients*, Neural Networks 23, 2010, adapts the
        sigma of whole episodes. Kingma, Ba, *Adam*, ICLR 2015.
    """

    initial: PyTree
    rate: Float[Array, ""]
    span: Float[Array, ""]

    def __init__(self, initial: PyTree, *, rate: int | float = 0.02, span: int | float = 10.0):
        self.initial = positive_arrays("sigma", initial)
        self.rate = positive_arrays("rate", rate)
        self.span = positive_arrays("span", span)
        if span < 1:
            raise ValueError(f"span must be at least 1, got {span}.")

    def begin(self, windows: int) -> "Adaptation":
        """Return the state before the first estimate, for so many windows per episode."""
        zeros = jax.tree.map(jnp.zeros_like, self.initial)
        of_windows = jnp.zeros(windows)
        return Adaptation(self.initial, zeros, zeros, jnp.int32(0), of_windows, of_windows)

    def adapt(self, old: "Adaptation", slope: PyTree) -> "Adaptation":
        """Return the state after a step against the slope of the smoothed loss by log sigma."""
        usable = jnp.array([jnp.isfinite(s).all() for s in jax.tree.leaves(slope)]).all()
        slope = jax.tree.map(lambda s: jnp.where(usable, s, 0), slope)
        count = old.count + usable.astype(old.count.dtype)
        decayed = lambda decay, power: lambda m, s: decay * m + (1 - decay) * s**power  # noqa: E731
        mean = jax.tree.map(decayed(MEAN_DECAY, 1), old.mean, slope)
        square = jax.tree.map(decayed(SQUARE_DECAY, 2), old.square, slope)
        mean_share = 1 - MEAN_DECAY ** count.astype(float)
        square_share = 1 - SQUARE_DECAY ** count.astype(float)

        def step(sigma, initial, m, v):
            size = jnp.sqrt(v / square_share)
            relative = jnp.where(size > 0, m / mean_share / size, 0)
            new = sigma * jnp.exp(-self.rate * jnp.clip(relative, -1, 1))
            return jnp.clip(new, initial / self.span, initial * self.span)

        sigma = jax.tree.map(step, old.sigma, self.initial, mean, square)
        new = Adaptation(sigma, mean, square, count, old.loss, old.weight)
        return jax.tree.map(lambda n, o: jnp.where(usable, n, o), new, old)


class Adaptation(eqx.Module):
    """The state of an `AdaptiveSigma`, carried from estimate to estimate."""

    sigma: PyTree
    """The sigma of the next noises."""
    mean: PyTree
    """The running mean of the slope of the smoothed loss by log sigma."""
    square: PyTree
    """The running mean of the square of that slope."""
    count: Int[Array, ""]
    """The number of slopes so far."""
    loss: Float[Array, " windows"]
    """The running mean of the loss in each window of the episode, up to the factor `weight`."""
    weight: Float[Array, " windows"]
    """The total weight of the losses in `loss`, from 0 to 1."""

    @property
    def typical(self) -> Float[Array, ""]:
        """The geometric mean of sigma over its elements."""
        logs = jnp.concatenate([jnp.log(s).ravel() for s in jax.tree.leaves(self.sigma)])
        return jnp.exp(logs.mean())

    def baseline(
        self, start: Int[Array, " workers"], window: int, loss: Float[Array, " workers"]
    ) -> Float[Array, " workers"]:
        """Return the usual loss in each worker's window; its own `loss` if none is known.

        A worker that is in a window for the first time with its noise has not contributed to the
        usual loss of that window, so the baseline is independent of its noise.
        """
        at = start // window
        weight = self.weight[at]
        known = self.loss[at] / jnp.where(weight > 0, weight, 1)
        return jnp.where(weight > 0, known.astype(loss.dtype), loss)

    def with_losses(
        self,
        start: Int[Array, " workers"],
        window: int,
        loss: Float[Array, " workers"],
        finite: Bool[Array, " workers"],
    ) -> "Adaptation":
        """Return the same state with the losses of the workers' windows included."""
        at, some = start // window, finite.astype(self.weight.dtype)
        count = jnp.zeros_like(self.weight).at[at].add(some)
        finite_loss = jnp.where(finite, loss, 0).astype(self.loss.dtype)
        total = jnp.zeros_like(self.loss).at[at].add(finite_loss)
        kept = jnp.where(count > 0, LOSS_DECAY**count, 1)
        share = (1 - kept) / jnp.maximum(count, 1)
        new = kept * self.loss + share * total, kept * self.weight + share * count
        return eqx.tree_at(lambda a: (a.loss, a.weight), self, new)


class Adapted(eqx.Module):
    """The sigma of an estimator at one update, and the losses to compare with."""

    now: Adaptation
