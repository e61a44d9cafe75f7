"""Errors that a user can mend are told in a sentence, without a traceback."""

import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

import typer
from rich.console import Console
from rich.text import Text

from nres.checkpoint import CheckpointError
from nres.data import DataError
from nres.estimators import NonFiniteError
from nres.hosts import HostError, several
from nres.pools import PoolError
from nres.runs import RunError, SettingsError
from nres.runs.metrics import MetricsError
from nres.systems.learned_optimizer.export import OptimizerFileError

TOLD = (
    RunError,
    CheckpointError,
    MetricsError,
    PoolError,
    HostError,
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
            tell(error)
            end(2, error)
        except TOLD as error:
            tell(error)
            end(1, error)
        except Exception as error:
            if not several() or isinstance(error, typer.Exit):
                raise
            traceback.print_exc()
            end(1, error)

    return wrapped


def end(code: int, error: Exception | None = None) -> NoReturn:
    """End the command before its time."""
    if several():
        # The usual way would be to wait for the others, who wait for this one.
        sys.stdout.flush()
        os._exit(code)
    raise typer.Exit(code) from error


def tell(error: Exception | str) -> None:
    """What went wrong, in a sentence."""
    message = Text.assemble(("Error: ", "bold red"), str(error))
    Console(stderr=True, soft_wrap=True).print(message)
