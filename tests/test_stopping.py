"""Runs that stop early, also after they were killed and resumed."""

import json
import math

import numpy as np
import pytest

import nres
from helpers import BOUNCER, as_users_run, create_run, invoke
from nres import runs

# The parameters hardly change, so no evaluation improves on the one before the first update.
STILL = {"lr": 1e-30, "updates": 60, "eval_every": 5, "checkpoint_every": 5, "stop_after": 2}


class Killed(Exception):
    """Stands for the end of the process: nothing after it is written."""


def killed_after(update):
    def callback(progress):
        if progress.state.update >= update:
            raise Killed

    return callback


@pytest.mark.parametrize("killed_at", [None, 6, 10])
def test_a_run_stops_early_also_if_it_is_killed(tmp_path, killed_at):
    with as_users_run():
        run = create_run(tmp_path / "run", **STILL)
        if killed_at is not None:
            with pytest.raises(Killed):
                runs.execute(run, callback=killed_after(killed_at))
        outcome = runs.execute(runs.Run.open(run.path))
        assert outcome.result.state.update == 10
        assert outcome.stopped_early
        assert not outcome.unfinished
        again = runs.execute(runs.Run.open(run.path))
        assert (again.result.state.update, again.stopped_early) == (10, True)
    opened = runs.Run.open(run.path)
    assert (opened.settings.updates, opened.ended_early) == (60, "stopped early")
    evaluated = np.isfinite(opened.metrics["eval/loss"])
    assert list(opened.metrics["update"][evaluated]) == [0, 5, 10]


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_stopping_early_on_the_command_line(tmp_path):
    with as_users_run():
        path = create_run(tmp_path / "run", **STILL).path
    told = invoke("resume", path)
    assert told.exit_code == 0, told.output
    assert "10 of 60 updates" in told.output
    assert f"nres resume {path} --stop-after" in told.output
    assert "10 of 60, stopped early" in invoke("show", path).output
    assert "complete" not in invoke("resume", path).output  # it stops again at once
    told = invoke("resume", path, "--stop-after", 90, "--updates", 20)
    assert "20 of 20 updates" in told.output
    opened = runs.Run.open(path)
    assert (opened.settings.stop_after, opened.ended_early) == (90, None)
    assert "stopped early" not in invoke("show", path).output
    assert "stop_after" in invoke("resume", path, "--stop-after", 0).stderr


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_seeds_that_stop_early_are_counted_and_not_built_again(tmp_path, monkeypatch):
    built = []
    count = lambda settings: built.append(settings.seed) or runs.build(settings)  # noqa: E731
    monkeypatch.setattr("nres.cli.train.build", count)
    options = [f"--{name.replace('_', '-')}={value}" for name, value in STILL.items()]
    options += ["--set", "horizon=30", "--sigma", 0.1]
    command = ["train", BOUNCER, *options, "--seeds", 2, "--out", tmp_path / "both"]
    for _ in range(2):
        told = invoke(*command)
        assert told.exit_code == 0, told.output
        assert "10 updates each, 2 stopped early" in told.output
        assert built == [0, 1]


def test_a_config_from_elsewhere_may_hold_anything(tmp_path):
    run = create_run(tmp_path / "run")
    config = json.loads((run.path / "config.json").read_text())
    for value in ("yes", 1, None, [True]):
        (run.path / "config.json").write_text(json.dumps(config | {"stopped_early": value}))
        assert runs.Run.open(run.path).ended_early is None


def test_evaluations_are_replayed():
    stopping = nres.callbacks.EarlyStopping(patience=2)
    stopping.replay([3.0, 2.0, math.nan])
    assert not stopping.stopped
    stopping.replay([2.0])
    assert stopping.stopped
