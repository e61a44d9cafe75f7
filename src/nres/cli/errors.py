"""Errors that a user can fix, printed as one sentence without a traceback."""

import functools
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import typer
from rich.console import Console
from rich.text import Text

from nres.checkpoint import CheckpointError
from nres.cli.console import plain, tolerate_encoding
from nres.data import DataError
from nres.errors import first_line
from nres.estimators import NonFiniteError
from nres.history import NonFiniteWarning
from nres.monitor import NoSignalWarning
from nres.multihost import HostError, is_multihost
from nres.pools import PoolError
from nres.report.page import LeftOutWarning
from nres.runs import RunError, SettingsError
from nres.runs.metrics import DamagedMetricsWarning, MetricsError
from nres.systems.learned_optimizer.export import OptimizerFileError
from nres.weights import WeightsError

TOLD = (
    RunError,
    CheckpointError,
    MetricsError,
    PoolError,
    HostError,
    NonFiniteError,
    DataError,
    OptimizerFileError,
    WeightsError,
    ImportError,
    MemoryError,
    OSError,
)
_WARNINGS = (NonFiniteWarning, NoSignalWarning, DamagedMetricsWarning, LeftOutWarning)
# Parts of the messages of JAX about a missing device and about too little memory.
_BACKEND = ("Unable to initialize backend", "Unknown backend", "No visible")
_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory")


def explained(command: Callable) -> Callable:
    """Decorate a command so that it ends with one clear sentence when it cannot continue."""

    @functools.wraps(command)
    def wrapped(*arguments, **options):
        tolerate_encoding()
        with warnings.catch_warnings():
            warnings.showwarning = _tell_warning
            for kind in _WARNINGS:
                warnings.simplefilter("always", kind)
            try:
                return command(*arguments, **options)
            except SettingsError as error:
                tell(error)
                end(2, error)
            except TOLD as error:
                tell(
                    error
                    if str(error)
                    else "there is not enough memory: reduce the number of workers or episodes."
                )
                end(1, error)
            except Exception as error:
                if isinstance(error, RuntimeError | ValueError) and (words := _of_jax(error)):
                    tell(words)
                    end(1, error)
                if not is_multihost() or isinstance(error, typer.Exit):
                    raise
                traceback.print_exc()
                end(1, error)

    return wrapped


def _of_jax(error: Exception) -> str | None:
    """Return a message for an error of JAX that the user can fix, or `None` for any other."""
    text = str(error)
    if any(words in text for words in _BACKEND):
        wanted = os.environ.get("JAX_PLATFORMS")
        hint = f" JAX_PLATFORMS is {wanted!r}: unset it, or set it to cpu." if wanted else ""
        return f"JAX finds no device to compute on: {first_line(error)}{hint}"
    if isinstance(error, jax.errors.JaxRuntimeError) and any(words in text for words in _MEMORY):
        return f"there is not enough memory: {first_line(error)}"
    return None


def end(code: int, error: Exception | None = None) -> NoReturn:
    """End the command early, with an exit code."""
    if is_multihost():
        # A usual exit would wait for the other processes, which wait for this one.
        sys.stdout.flush()
        os._exit(code)
    raise typer.Exit(code) from error


def tell(error: Exception | str) -> None:
    """Print an error message to standard error."""
    _print("Error: ", "bold red", str(error))


def _tell_warning(message: Any, *where: Any, **options: Any) -> None:
    _print("Warning: ", "yellow", str(message))


def _print(label: str, style: str, text: str) -> None:
    line = Text.assemble((label, style), plain(text))
    Console(stderr=True).print(line, soft_wrap=True, highlight=False)
