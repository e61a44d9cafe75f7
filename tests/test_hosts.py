"""Runs of several processes, as if each were on a host of its own."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from helpers import as_users_run
from nres import runs
from nres.cli import app

# Processes that are started, signalled and killed.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
BOUNCER = f"{ROOT}/examples/bouncer.py:Bouncer"
SHORT = ["--set", "horizon=40", "--window", "20", "--workers", "8", "--sigma", "0.1"]
SHORT += ["--lr", "0.01", "--checkpoint-seconds", "0.2"]
MISSING = ["--num-processes", "2"]


@pytest.fixture(scope="module")
def environment():
    shared = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    flags = re.sub(r"--xla_force_host\S+", "", os.environ.get("XLA_FLAGS", ""))
    return os.environ | shared | {"COLUMNS": "200", "XLA_FLAGS": flags}


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


class Hosts:
    """Processes with folders of their own, so that nobody sees what the first one writes."""

    def __init__(self, count, arguments, folder, environment, own=lambda i: []):
        address = f"127.0.0.1:{free_port()}"
        self.processes = []
        for i in range(count):
            (folder / str(i)).mkdir(exist_ok=True)
            who = ["--coordinator", address, "--num-processes", count, "--process-id", i]
            command = [sys.executable, "-m", "nres", *arguments, *who, *own(i)]
            self.processes.append(
                subprocess.Popen(
                    [str(word) for word in command],
                    cwd=folder / str(i),
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )

    def finish(self):
        """Return the exit code, the output and the errors of each process."""
        ends = []
        for process in self.processes:
            output, errors = process.communicate(timeout=120)
            ends.append((process.returncode, output, errors))
        return ends

    def until_training(self, metrics, made=0):
        """Wait until there is a checkpoint of a later update."""
        deadline = time.monotonic() + 120
        checkpoints = metrics.parent / "checkpoints"
        while not any(
            int(path.name) > made for path in checkpoints.glob("*") if path.name.isdigit()
        ):
            if self.processes[0].poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"did not begin: {self.finish()}")
            time.sleep(0.01)


def test_a_process_dies_and_the_run_goes_on_with_more(tmp_path, environment):
    """Two processes, of which one dies, then four, of which one gets a signal: as one alone."""
    run = tmp_path / "0" / "run"
    begun = Hosts(
        2, ["train", BOUNCER, *SHORT, "--updates", 100_000, "--out", "run"], tmp_path, environment
    )
    begun.until_training(run / "metrics.jsonl")
    begun.processes[1].kill()
    (code, output, errors), (killed, *_) = begun.finish()
    assert (code, killed, output) == (1, -signal.SIGKILL, "")
    assert "nres resume run" in errors
    assert len(errors.strip().splitlines()) == 1
    made = runs.Run.open(run).updates_made()
    assert made > 0

    # Four processes on few cores take a while to come together.
    resume = ["resume", "run", "--updates", 200_000, "--connect-timeout", 150]
    more = Hosts(4, resume, tmp_path, environment)
    more.until_training(run / "metrics.jsonl", made)
    more.processes[2].send_signal(signal.SIGTERM)
    ends = more.finish()
    assert [code for code, *_ in ends] == [143] * 4, ends
    assert "nres resume run" in ends[0][1]
    assert [output for _, output, _ in ends[1:]] == [""] * 3
    # Only the first one's folder was written to.
    assert [len(list((tmp_path / str(i)).iterdir())) for i in range(4)] == [1, 0, 0, 0]
    opened = runs.Run.open(run)
    assert opened.settings.devices == 4
    updates = opened.updates_made()
    assert updates > made
    assert opened.metrics["update"][-1] <= updates

    alone = tmp_path / "alone"
    command = ["train", BOUNCER, *SHORT, "--updates", str(updates), "--out", str(alone)]
    with as_users_run():
        assert CliRunner().invoke(app, [*command, "--quiet"]).exit_code == 0
    whole = runs.Run.open(alone)
    np.testing.assert_allclose(
        opened.theta()["velocity"], whole.theta()["velocity"], rtol=1e-2, atol=1e-3
    )


def test_processes_that_do_not_fit_together(tmp_path, environment):
    train = ["train", BOUNCER, *SHORT, "--updates", 10, "--out", "run"]
    late = Hosts(1, [*train, "--connect-timeout", 8], tmp_path, environment, lambda i: MISSING)
    several = {
        "settings": Hosts(2, train, tmp_path, environment, lambda i: ["--seed", i]),
        "number": Hosts(2, train, tmp_path, environment, lambda i: ["--num-processes", 2 + i]),
    }
    told = {"settings": ("settings", "seed=1"), "number": ("--num-processes", "--num-processes 3")}
    for kind, culprits in told.items():
        for (code, _, errors), culprit in zip(several[kind].finish(), culprits, strict=True):
            assert code != 0
            assert culprit in errors
    ((code, _, errors),) = late.finish()
    assert code != 0
    assert "2 processes" in errors
    assert "8 s" in errors
    assert [list((tmp_path / str(i)).iterdir()) for i in range(2)] == [[], []]
