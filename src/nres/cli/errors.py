"""Errors that a user can mend are told in a sentence, without a traceback."""

import functools
from collections.abc import Callable

import typer
from rich.console import Console
from rich.text import Text

from nres.checkpoint import CheckpointError
from nres.data import DataError
from nres.estimators import NonFiniteError
from nres.pools import PoolError
from nres.runs import RunError, SettingsError
from nres.runs.metrics import MetricsError
from nres.systems.learned_optimizer.export import OptimizerFileError

TOLD = (
    RunError,
    CheckpointError,
    MetricsError,
    PoolError,
    NonFiniteError,
    DataError,
    OptimizerFileError,
    ImportError,
    OSError,
)


def explained(command: Callable) -> Callable:
    """A command that ends with one clear sentence where it cannot go on."""

    @functools.wraps(command)
    def wrapped(*arguments, **options):
        try:
            return command(*arguments, **options)
        except SettingsError as error:
            _tell(error)
            raise typer.Exit(2) from error
        except TOLD as error:
            _tell(error)
            raise typer.Exit(1) from error

    return wrapped


def _tell(error: Exception) -> None:
    message = Text.assemble(("Error: ", "bold red"), str(error))
    Console(stderr=True, soft_wrap=True).print(message)
