"""Files of learned optimizers, with weights and a description, for use with optax."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from nres.files import replacing
from nres.system import Theta, check_finite
from nres.systems.learned_optimizer.adafactor_mlp import AdafactorMLP
from nres.systems.learned_optimizer.celo2 import Celo2
from nres.systems.learned_optimizer.optimizers import (
    SGD,
    Adam,
    LayeredMLP,
    LearnableOptimizer,
    Momentum,
    PerParameterMLP,
)
from nres.weights import Archive, WeightsError, named_arrays

# Optimizers that a file can name. The reader passes any other, because a file never brings code.
_KINDS = (PerParameterMLP, LayeredMLP, AdafactorMLP, Celo2, SGD, Momentum, Adam)
KINDS = {kind.__name__: kind for kind in _KINDS}
FORMAT = 1
# The maximal size of an optimizer's description, in bytes.
LARGEST_DESCRIPTION = 1_000_000
MOST_LAYERS = 1000
SHIPPED = {"celo2": Path(__file__).parent / "shipped" / "celo2.npz"}
"""The files of optimizers that come with nres, by name; a card lies beside each."""


class OptimizerFileError(ValueError):
    """Error for a file that does not hold an optimizer of nres."""


def save_optimizer(
    path: str | Path,
    optimizer: LearnableOptimizer,
    theta: Theta,
    about: dict[str, Any] | None = None,
) -> None:
    """Write an optimizer and its parameters to one `.npz` file.

    Args:
        path: The file. Its name must end in `.npz`; an existing file is replaced.
        optimizer: The optimizer.
        theta: Its parameters.
        about: Metadata to store with them, anything that JSON can hold.

    Raises:
        OptimizerFileError: If the name does not end in `.npz`.

    Example:
        ```python
        save_optimizer("mine.npz", system.optimizer, result.theta)
        optimizer = nres.load_optimizer("mine.npz")      # for optax
        ```
    """
    path = Path(path)
    if path.suffix != ".npz":
        raise OptimizerFileError(f"{path} must end in .npz.")
    kind = _kind(optimizer)
    description = {
        "format": FORMAT,
        "optimizer": kind,
        "settings": _settings(optimizer),
        "about": about or {},
    }
    arrays: dict[str, Any] = named_arrays(theta)
    text = np.frombuffer(json.dumps(description).encode(), np.uint8)
    with replacing(path) as partial:
        np.savez_compressed(partial, description=text, **arrays)


def _kind(optimizer: LearnableOptimizer) -> str:
    cls = type(optimizer)
    known = KINDS.get(cls.__name__) is cls
    return cls.__name__ if known else f"{cls.__module__}.{cls.__qualname__}"


def _settings(optimizer: LearnableOptimizer) -> dict[str, Any]:
    """Return the constructor arguments of a known optimizer."""
    if type(optimizer) not in KINDS.values():
        return {}
    return {f.name: getattr(optimizer, f.name) for f in dataclasses.fields(optimizer)}


def is_shipped(path: str | Path) -> bool:
    """Return true if this is the name of an optimizer that comes with nres, and of no file."""
    return str(path) in SHIPPED and not Path(path).is_file()


def read_optimizer(
    path: str | Path, optimizer: LearnableOptimizer | None = None
) -> tuple[LearnableOptimizer, Theta, dict[str, Any]]:
    """Read an optimizer, its parameters and its metadata from a file.

    Args:
        path: A file of `save_optimizer` or `nres export`, or a name from `SHIPPED`.
        optimizer: The optimizer that the parameters belong to, if it is a class of your own.

    Returns:
        The optimizer, its parameters, and the metadata.

    Raises:
        OptimizerFileError: If the file does not hold this optimizer.
        FileNotFoundError: If there is no such file.
    """
    file = SHIPPED[str(path)] if is_shipped(path) else Path(path)
    if not file.exists():
        raise FileNotFoundError(
            f"there is no file {path}, and no optimizer of this name comes with nres: give the "
            f"path of a file, or one of these names: {', '.join(SHIPPED)}."
        )
    try:
        with Archive(file) as archive:
            return _read(archive, optimizer)
    except WeightsError as error:
        raise OptimizerFileError(f"{path} holds no optimizer of nres: {error}") from error


def _read(
    archive: Archive, optimizer: LearnableOptimizer | None
) -> tuple[LearnableOptimizer, Theta, dict[str, Any]]:
    path = archive.path
    text = archive.read("description", LARGEST_DESCRIPTION).tobytes()
    names = ("optimizer", "settings", "format", "about")
    try:
        description = json.loads(text)
        kind, settings, version, about = (description[name] for name in names)
        known = KINDS.get(kind)
        depth = settings.get("depth", 0)
        if not isinstance(depth, int) or depth > MOST_LAYERS:
            raise ValueError(f"it names {depth} layers; at most {MOST_LAYERS} are read")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise OptimizerFileError(f"{path} holds no optimizer of nres: {error}.") from error
    if version != FORMAT:
        raise OptimizerFileError(f"{path} has format {version}; this nres reads {FORMAT}.")
    if optimizer is None:
        if known is None:
            raise OptimizerFileError(
                f"{path} is for a {kind}, which is not part of nres: "
                "write load_optimizer(path, optimizer=...)."
            )
        try:
            optimizer = known(**settings)
            jax.eval_shape(optimizer.initial_theta, jax.random.key(0))
        except (TypeError, ValueError, ArithmeticError) as error:
            raise OptimizerFileError(f"{path}: {kind} has other settings: {error}.") from error
    elif (_kind(optimizer), _settings(optimizer)) != (kind, settings):
        given = f"{_kind(optimizer)} with {_settings(optimizer)}"
        raise OptimizerFileError(f"{path} is for {kind} with {settings}, not for {given}.")
    like = jax.eval_shape(optimizer.initial_theta, jax.random.key(0))
    try:
        theta = archive.theta(like)
    except WeightsError as error:
        raise OptimizerFileError(f"{error} The file should hold a {kind}.") from error
    try:
        check_finite(theta)
    except ValueError as error:
        raise OptimizerFileError(f"{path}: {error}") from error
    return optimizer, theta, about


def load_optimizer(
    path: str | Path,
    optimizer: LearnableOptimizer | None = None,
    *,
    lr: float | Callable[[Any], Any] | None = None,
) -> optax.GradientTransformation:
    """Load an optimizer from a file, for use with optax on any model.

    Args:
        path: A file of `save_optimizer` or `nres export`; or `"celo2"`, which comes with nres.
        optimizer: The optimizer that the parameters belong to, if it is a class of your own.
        lr: The learning rate, or a schedule: a function of the step. For optimizers that learn the
            size of their steps, a factor of it. By default, steps are as in training.

    Returns:
        An optax optimizer.

    Raises:
        OptimizerFileError: If the file does not hold this optimizer.
        FileNotFoundError: If there is no such file.
        ValueError: If `lr` is negative.

    Example:
        ```python
        optimizer = nres.load_optimizer("celo2", lr=1e-3)
        state = optimizer.init(params)
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        ```
    """
    learnable, theta, _ = read_optimizer(path, optimizer)
    return learnable.as_optax(theta, lr)
