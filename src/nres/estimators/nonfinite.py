"""Messages and errors for losses and gradients that are not finite."""

import equinox as eqx
import jax

from nres.estimators.values import Estimate


class NonFiniteError(FloatingPointError):
    """Error for a worker whose contribution is not finite, under the policy `"raise"`."""


def nonfinite_message(count: int, worker: int, start: int, update: int) -> str:
    """Describe which worker's contribution was not finite, and where."""
    return (
        f"{count} worker(s) gave a non-finite loss or gradient in update {update}; the first is "
        f"worker {worker}, in the window from step {start} of its episode. Smaller steps "
        "(learning rate, sigma) or a bounded loss may help."
    )


def raise_if_nonfinite(estimate: Estimate) -> Estimate:
    """Raise a `NonFiniteError` if a worker was left out; compiled code raises when it runs."""
    info = estimate.info
    if isinstance(info.nonfinite, jax.core.Tracer):
        message = "a worker gave a non-finite loss or gradient"
        grad = eqx.error_if(estimate.grad, info.nonfinite > 0, message)
        return eqx.tree_at(lambda e: e.grad, estimate, grad)
    if count := int(info.nonfinite):
        worker = int(info.first_nonfinite)
        start = int(info.window_start[worker])
        update = int(estimate.state.update)
        raise NonFiniteError(nonfinite_message(count, worker, start, update))
    return estimate
