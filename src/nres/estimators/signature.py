"""Signatures: everything that must not change between `init` and `estimate`."""

from typing import Any

import jax

from nres.system import Theta


def signature_of(estimator: Any, theta: Theta) -> Any:
    """Return everything that must not change between `init` and `estimate`."""
    leaves, structure = jax.tree.flatten(theta)
    settings = tuple((name, getattr(estimator, name)) for name in ("workers", "window", "horizon"))
    if estimator.pool.lengths is not None:
        settings += (("lengths", estimator.pool.lengths),)
    kind = (type(estimator).__name__, estimator.members, settings)
    return kind, structure, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)


def check_signature(estimator: Any, theta: Theta, expected: Any) -> None:
    """Raise a `ValueError` if the signature differs from that of the state."""
    found = signature_of(estimator, theta)
    if found != expected:
        raise ValueError(
            "theta or estimator differs from the one for which `init` made the state: got "
            f"{_describe(found)} instead of {_describe(expected)}."
        )


def _describe(signature: Any) -> str:
    (name, _, settings), structure, leaves = signature
    options = ", ".join(f"{option}={value}" for option, value in settings)
    arrays = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in leaves)
    return f"{name}({options}) with {structure} of {arrays}"
