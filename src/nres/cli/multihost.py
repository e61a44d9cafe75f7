"""Connection between the processes of a run on several hosts."""

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
from nres.runs.settings import MACHINES

# JAX considers a process dead after this many seconds without a heartbeat.
HEARTBEAT_SECONDS = 60


def connect(
    coordinator: Annotated[
        str | None,
        typer.Option(
            help="Run on several hosts, and connect to process 0 at this address; auto on "
            "clusters that JAX detects.",
            metavar="HOST:PORT",
            rich_help_panel=MACHINES,
            show_default="one host",
        ),
    ] = None,
    num_processes: Annotated[
        int | None,
        typer.Option(
            help="Set the number of processes.",
            metavar="N",
            rich_help_panel=MACHINES,
            show_default="required with --coordinator HOST:PORT",
        ),
    ] = None,
    process_id: Annotated[
        int | None,
        typer.Option(
            help="Number this process, from 0 to N - 1.",
            metavar="I",
            rich_help_panel=MACHINES,
            show_default="required with --coordinator HOST:PORT",
        ),
    ] = None,
    connect_timeout: Annotated[
        int,
        typer.Option(
            help="Wait up to N seconds for the other processes.",
            metavar="N",
            rich_help_panel=MACHINES,
        ),
    ] = 60,
) -> None:
    """Connect this process to those of the other hosts, before JAX computes anything.

    Without `coordinator` there is only this process, and the function does nothing.
    """
    if coordinator is None:
        if num_processes is not None or process_id is not None:
            raise SettingsError("--num-processes and --process-id need --coordinator HOST:PORT.")
        return
    if coordinator == "auto":
        if num_processes is not None or process_id is not None:
            raise SettingsError(
                "--coordinator auto detects --num-processes and --process-id: leave them out."
            )
        arguments: dict[str, Any] = {}
        missing = "not all processes of the cluster"
    else:
        arguments = _checked(coordinator, num_processes, process_id)
        missing = f"not all of the {num_processes} processes"
        if process_id:
            _wait_for(coordinator, connect_timeout)
    late = (
        f"{missing} connected within {connect_timeout} s. Start all of them with the same "
        "--coordinator and --num-processes, and each with its own --process-id. Increase "
        "--connect-timeout to wait longer."
    )
    with _deadline(connect_timeout, late):
        try:
            jax.distributed.initialize(
                **arguments,
                # Later than the deadline above: JAX would end the process without a message.
                initialization_timeout=2 * connect_timeout,
                heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            )
            wrong = num_processes not in (None, jax.process_count())
            with _without_greeting():
                _, somewhere = multihost.agree_on(0, wrong)
            if wrong:
                raise multihost.HostError(
                    f"process {process_id} was started with --num-processes {num_processes}, but "
                    f"process 0 with {jax.process_count()}: give all processes the same number."
                )
            if somewhere:
                raise multihost.HostError(
                    "another process was started with a different --num-processes: give all "
                    "processes the same number."
                )
        except multihost.HostError:
            raise
        except (RuntimeError, ValueError) as error:
            reason = first_line(error)
            if not arguments:
                reason += (
                    " JAX detects SLURM, Open MPI, Kubernetes and TPUs; elsewhere give HOST:PORT."
                )
            raise multihost.HostError(f"this process cannot join the others: {reason}") from error


def _checked(coordinator: str, num_processes: int | None, process_id: int | None) -> dict[str, Any]:
    if multihost.split_address(coordinator) is None:
        raise SettingsError(
            f"--coordinator takes HOST:PORT, for example 10.0.0.1:9876, or auto; got "
            f"{coordinator!r}."
        )
    if num_processes is None or process_id is None:
        raise SettingsError("--coordinator also needs --num-processes and --process-id.")
    if not 0 <= process_id < num_processes:
        raise SettingsError(
            f"--process-id must be from 0 to {num_processes - 1}, one less than --num-processes; "
            f"got {process_id}."
        )
    arguments = {
        "coordinator_address": coordinator,
        "num_processes": num_processes,
        "process_id": process_id,
    }
    host = multihost.split_address(coordinator)[0]  # type: ignore[index]
    if host in ("localhost", "127.0.0.1", "::1"):
        # By default JAX would listen on all network interfaces.
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
                    f"no process answers at {address} ({error}). Start process 0 there."
                ) from error
            time.sleep(0.2)


@contextlib.contextmanager
def _deadline(seconds: int, message: str) -> Iterator[None]:
    """End this process if the block takes too long: nothing else can interrupt it."""

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
    """Hide what the library that connects CPUs (Gloo) prints to standard output."""
    before = os.dup(1)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    try:
        yield
    finally:
        os.dup2(before, 1)
        os.close(before)
        os.close(nothing)
