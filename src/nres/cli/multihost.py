"""Connections between the processes of a run on several hosts."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Annotated, Any

import jax
import typer

from nres import multihost
from nres.cli.errors import tell
from nres.errors import first_line
from nres.runs import SettingsError
from nres.runs.settings import PLACEMENT

# A process of which nothing is heard for so many seconds is taken for dead.
HEARTBEAT_SECONDS = 60


def connect(
    coordinator: Annotated[
        str | None,
        typer.Option(
            help="Join the processes of several hosts, the first of which listens here; auto on a "
            "cluster that JAX knows.",
            metavar="HOST:PORT",
            rich_help_panel=PLACEMENT,
        ),
    ] = None,
    num_processes: Annotated[
        int | None,
        typer.Option(help="Wait for N processes in all.", metavar="N", rich_help_panel=PLACEMENT),
    ] = None,
    process_id: Annotated[
        int | None,
        typer.Option(
            help="Be this one of the processes, from 0.", metavar="I", rich_help_panel=PLACEMENT
        ),
    ] = None,
    connect_timeout: Annotated[
        int,
        typer.Option(
            help="Wait for the others this long.", metavar="SECONDS", rich_help_panel=PLACEMENT
        ),
    ] = 60,
) -> None:
    """Make this process one of several, if it is said to be; before JAX computes anything."""
    if coordinator is None:
        if num_processes is not None or process_id is not None:
            raise SettingsError("--num-processes and --process-id need a --coordinator HOST:PORT.")
        return
    if coordinator == "auto":
        if num_processes is not None or process_id is not None:
            raise SettingsError("--coordinator auto finds --num-processes and --process-id itself.")
        arguments: dict[str, Any] = {}
        what = "not all processes of the cluster"
    else:
        arguments = _checked(coordinator, num_processes, process_id)
        what = f"not all of the {num_processes} processes"
        if process_id:
            _wait_for(coordinator, connect_timeout)
    late = (
        f"{what} came together within {connect_timeout} s. Start all of them, with the same "
        "--coordinator and --num-processes and a --process-id of its own each; --connect-timeout "
        "waits longer."
    )
    with _deadline(connect_timeout, late):
        try:
            jax.distributed.initialize(
                **arguments,
                initialization_timeout=2
                * connect_timeout,  # it would end the process without a word
                heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            )
            wrong = num_processes not in (None, jax.process_count())
            with _without_greeting():
                _, somewhere = multihost.agree_on(0, wrong)  # now they are connected
            if wrong:
                raise multihost.HostError(
                    f"process {process_id} was started with --num-processes {num_processes}, and "
                    f"process 0 with {jax.process_count()}: all must say the same."
                )
            if somewhere:
                raise multihost.HostError(
                    "another process was started with another --num-processes."
                )
        except multihost.HostError:
            raise
        except (RuntimeError, ValueError) as error:
            reason = first_line(error)
            if not arguments:
                reason += " JAX knows SLURM, Open MPI, Kubernetes and TPUs; else give HOST:PORT."
            raise multihost.HostError(f"this process cannot join the others: {reason}") from error


def _checked(coordinator: str, num_processes: int | None, process_id: int | None) -> dict[str, Any]:
    if multihost.split_address(coordinator) is None:
        raise SettingsError(
            f"--coordinator takes HOST:PORT, such as 10.0.0.1:9876, or auto; got {coordinator!r}."
        )
    if num_processes is None or process_id is None:
        raise SettingsError("--coordinator needs --num-processes and --process-id, too.")
    if not 0 <= process_id < num_processes:
        raise SettingsError(
            f"--process-id goes from 0 to --num-processes - 1, {num_processes - 1}; got "
            f"{process_id}."
        )
    arguments = {
        "coordinator_address": coordinator,
        "num_processes": num_processes,
        "process_id": process_id,
    }
    host = multihost.split_address(coordinator)[0]  # type: ignore[index]
    if host in ("localhost", "127.0.0.1", "::1"):
        # JAX would listen to every network that this machine is in.
        arguments["coordinator_bind_address"] = coordinator
    return arguments


def _wait_for(address: str, timeout: int) -> None:
    where = multihost.split_address(address)
    assert where is not None
    end = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection(where, timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > end or isinstance(error, socket.gaierror):
                raise multihost.HostError(
                    f"nobody answers at {address} ({error}). Is process 0 running there?"
                ) from error
            time.sleep(0.2)


@contextlib.contextmanager
def _deadline(seconds: int, message: str) -> Iterator[None]:
    """End this process unless what follows is done in time; it cannot be interrupted otherwise."""

    def end() -> None:
        tell(message)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def _without_greeting() -> Iterator[None]:
    """Hide the greeting that the library which connects CPUs prints to standard output."""
    before = os.dup(1)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    try:
        yield
    finally:
        os.dup2(before, 1)
        os.close(before)
        os.close(nothing)
