"""Workers in the actors of a real Ray cluster, of which machines get lost."""

import contextlib
import functools
import os
import re
import sys
import threading
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import ray
from ray.cluster_utils import Cluster
from typer.testing import CliRunner

import nres
from helpers import Spiral, as_users_run, raises_naming, spiral_theta
from nres import runs
from nres.cli import app
from nres.estimators.computing import gather_state
from nres.placement import Ray
from nres.pools import MujocoPool, PoolError
from table import ESTIMATORS, LAWS

# Ray starts processes by a fork that does nothing but that.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning"),
]

TESTS = Path(__file__).parent
sys.path.append(str(TESTS.parent / "benchmarks"))
import actors  # noqa: E402

KEY = jax.random.key(2)
swimmer = functools.partial(MujocoPool, "swimmer", horizon=24, threads=1)
THETA = jnp.linspace(-0.5, 0.5, 16).reshape(2, 8)
STRATEGIES = {
    "NRES": functools.partial(nres.NRES, workers=5, window=8, sigma=0.3),
    "PES": functools.partial(nres.PES, workers=5, window=8, sigma=0.3),
    "GPES": functools.partial(
        nres.GPES, workers=5, window=4, period=8, sigma=0.3, store_noise=False
    ),
    "TES": functools.partial(nres.TES, workers=5, window=8, sigma=0.3),
    "FullES": functools.partial(nres.FullES, workers=5, sigma=0.3),
}


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{TESTS}:{TESTS.parent / 'benchmarks'}")  # for actors, too
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 7})
        ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def closing():
    """Lets placements of a test give back their actors."""
    with contextlib.ExitStack() as stack:
        yield lambda placement: stack.enter_context(contextlib.closing(placement))


@pytest.fixture(scope="module")
def swimmers(cluster):
    """Makes estimators with workers in three actors, for all tests that want no more."""
    placement, pool = Ray(actors=3), swimmer()
    yield lambda make: make(pool, placement=placement)
    placement.close()


def process_of(actor):
    return ray.get(actor.__ray_call__.remote(lambda self: os.getpid()))


def estimates(estimator, theta, count, before=lambda i: None, drift=0.0):
    """Estimates one after another, at parameters that move in a way of their own."""
    state, found = estimator.init(theta, KEY), []
    for i in range(count):
        before(i)
        there = jax.tree.map(lambda x, i=i: x + drift * i, theta)
        estimate = estimator.estimate(there, state)
        state = estimate.state
        found.append(estimate)
    return found


def assert_close(one, other):
    for a, b in zip(one, other, strict=True):
        for x, y in zip(
            jax.tree.leaves((a.grad, a.loss)), jax.tree.leaves((b.grad, b.loss)), strict=True
        ):
            np.testing.assert_allclose(x, y, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_simulator_is_the_same_as_without_ray(name, swimmers):
    alone, together = STRATEGIES[name](swimmer()), swimmers(STRATEGIES[name])
    assert alone.unlock(THETA, KEY)[1] == together.unlock(THETA, KEY)[1]
    alone, together = (estimates(e, THETA, 5, drift=0.01) for e in (alone, together))
    assert_close(alone, together)
    assert [e.steps for e in alone] == [e.steps for e in together]


@pytest.fixture(scope="module")
def spirals(cluster):
    placement, system = Ray(actors=2), Spiral()
    yield lambda make, **options: make(system, placement=placement, **options)
    placement.close()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_jax_system_is_the_same_as_without_ray(name, spirals):
    """Those that differentiate it, too: an actor runs any estimator's window."""
    make, theta = ESTIMATORS[name], spiral_theta()
    alone, together = (estimates(e, theta, 4, drift=0.01) for e in (make(Spiral()), spirals(make)))
    assert_close(alone, together)
    assert [e.steps for e in alone] == [e.steps for e in together]


@pytest.mark.parametrize("law", [law for law in LAWS if law != "Gaussian"])
def test_any_law_of_noise(law, spirals):
    make, theta = functools.partial(ESTIMATORS["PES"], noise=LAWS[law]), spiral_theta()
    alone, together = (estimates(e, theta, 3) for e in (make(Spiral()), spirals(make)))
    assert_close(alone, together)


def killing(estimator, shard, when):
    """Kill the actor of a shard before this estimate."""

    def before(i):
        if i == when:
            os.kill(process_of(estimator.placement.crew.actors[shard]), 9)

    return before


def reported(estimate, name):
    return int(estimate.report[Ray.reports.index(name)])


def test_a_lost_actor_is_replaced_and_its_workers_are_restarted(swimmers):
    """At parameters that do not move, restarted workers are where they were."""
    for name in ("PES", "TES"):
        alone = estimates(STRATEGIES[name](swimmer()), THETA, 5)
        placed = swimmers(STRATEGIES[name])
        together = estimates(placed, THETA, 5, before=killing(placed, 1, 3))
        assert_close(alone, together)
        assert [reported(e, "restarted") for e in together] == [0, 0, 0, 2, 0]
        # They were unrolled again, by all members, which is not free.
        starts = np.asarray(alone[3].info.window_start)[1:3]
        members = 3 if name == "TES" else 2
        again = together[3].steps.total - alone[3].steps.total
        assert again == members * starts.sum() > 0


def test_restarted_workers_weigh_the_noises_they_were_restarted_with(cluster, closing):
    """Under a schedule, an episode that begins anew has one sigma: that of its present noise."""
    make = functools.partial(nres.GPES, workers=6, window=4, period=8)
    schedule = lambda u: jnp.where(u < 3, 0.5, 0.2)  # noqa: E731
    placed = make(swimmer(), sigma=schedule, placement=closing(Ray(actors=1)))
    found = estimates(placed, THETA, 4, before=killing(placed, 0, 3))[3].info
    new = np.asarray(found.window_start) % 8 == 0
    assert {True, False} == set(new.tolist())
    for sigma, workers in ((0.2, new), (0.5, ~new)):
        constant = estimates(make(swimmer(), sigma=sigma), THETA, 4)[3].info
        np.testing.assert_allclose(
            found.contribution_norm[workers], constant.contribution_norm[workers], rtol=1e-4
        )


def test_states_go_from_actors_to_a_checkpoint_and_on_to_others(swimmers):
    # A schedule, which cannot travel: its value does.
    sigma = optax.constant_schedule(0.3)
    make = functools.partial(nres.PES, workers=5, window=8, sigma=sigma)
    alone, placed = estimates(make(swimmer()), THETA, 5), swimmers(make)
    state = estimates(placed, THETA, 3)[-1].state
    os.kill(process_of(placed.placement.crew.actors[2]), 9)  # what is lost is made anew
    saved = gather_state(placed, THETA, state)
    expected = jax.tree.leaves(alone[2].state.carry)
    for leaf, other in zip(jax.tree.leaves(saved.carry), expected, strict=True):
        assert leaf.shape == other.shape
        assert leaf.dtype == other.dtype
    found = []
    for _ in range(2):  # twice from the same state, as if it had been copied
        estimate = placed.estimate(THETA, saved)
        found.append([estimate, placed.estimate(THETA, estimate.state)])
    assert_close(alone[3:], found[0])
    assert_close(alone[3:], found[1])


def test_keys_in_states_are_gathered(spirals):
    make, theta = ESTIMATORS["NRES"], spiral_theta()
    alone, placed = make(Spiral()), spirals(make)
    (one,), (other,) = (estimates(e, theta, 1) for e in (alone, placed))
    keys = gather_state(placed, theta, other.state).carry.pool.state["key"]
    assert (keys == one.state.carry.pool.state["key"]).all()


def fading(update):
    return 0.3 / (1.0 + update.astype(float))


class Sluggish(MujocoPool):
    """A pool that waits for a file, if it is told to."""

    gate = None

    def advance(self, *arguments, **options):
        end = time.monotonic() + 60
        while self.gate is not None and not self.gate.exists() and time.monotonic() < end:
            time.sleep(0.01)
        return super().advance(*arguments, **options)


def test_stragglers_are_waited_for_unless_staleness_is_allowed(cluster, closing, tmp_path):
    sluggish = functools.partial(Sluggish, "swimmer", horizon=24, threads=1)
    placement = closing(Ray(make_pool=sluggish, actors=2, allow_stale=True))
    make = functools.partial(nres.PES, workers=4, window=8, sigma=fading)
    estimator = make(swimmer(), placement=placement)
    slow, gate = placement.crew.actors[1], tmp_path / "gate"
    ray.get(slow.__ray_call__.remote(lambda self: setattr(self.pools[1], "gate", gate)))
    gate.touch()
    state, found = estimator.init(THETA, KEY), []
    gate.unlink()
    opening = threading.Timer(1.0, gate.touch)
    opening.start()
    began = time.perf_counter()
    for i in range(3):
        found.append(estimator.estimate(THETA, state))
        state = found[-1].state
        if i == 0:  # before the first update, everybody is waited for
            opening.join()
            gate.unlink()
    assert [reported(e, "late") for e in found] == [0, 2, 2]
    assert [int(e.info.nonfinite) for e in found] == [0, 0, 0]
    assert time.perf_counter() - began < 30  # the gate would hold them for a minute
    # What is late is not lost: it is the window that was asked for then, with its noise.
    gate.touch()
    process_of(slow)  # once it has taken its steps
    last = estimator.estimate(THETA, state)
    assert reported(last, "late") == 0
    alone = make(swimmer())
    second = estimates(alone, THETA, 2)[1]
    np.testing.assert_allclose(
        last.info.contribution_norm[2:], second.info.contribution_norm[2:], rtol=1e-4
    )
    assert last.state.workers.start[2:].tolist() == second.state.workers.start[2:].tolist()
    carry = gather_state(estimator, THETA, found[-1].state).carry  # before what is late
    assert carry.pool["rows"].shape[:2] == (2, 4)
    assert carry.noise.score.shape == (4, *THETA.shape)


def test_a_node_is_lost_in_the_middle_of_a_run(cluster, swimmers, closing):
    """Two of four actors are on it, and there is no room for others: two must do."""
    node = cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    placement = closing(Ray(actors=4))
    estimator = nres.NRES(swimmer(), workers=8, window=8, sigma=0.3, placement=placement)
    crew = placement.crew
    crew.start_timeout = 2
    before = list(crew.actors)

    def lose_node(progress):
        if progress.state.update == 3:
            cluster.remove_node(node, allow_graceful=False)

    with as_users_run():
        result = nres.train(
            estimator, optax.sgd(0.1), THETA, updates=8, key=KEY, callback=lose_node
        )
    assert result.state.update == 8
    assert result.history.placement["restarted"].tolist() == [0, 0, 0, 4, 0, 0, 0, 0]
    assert result.history.nonfinite.sum() == 0
    assert len(set(crew.actors)) == 2
    assert set(crew.actors) < set(before)


def test_a_simulator_that_fails_is_told_from_a_machine_that_is_lost(cluster, closing, monkeypatch):
    monkeypatch.setattr("nres.placement.ray.placement.ATTEMPTS", 1)
    placement = closing(Ray(actors=1))
    pool = Broken("swimmer", horizon=24, threads=1)
    estimator = nres.NRES(pool, workers=2, window=8, sigma=0.3, placement=placement)
    state, actor = estimator.init(THETA, KEY), placement.crew.actors[0]
    ray.get(actor.__ray_call__.remote(lambda self: setattr(self.pools[0], "how", "raise")))
    with raises_naming(PoolError, "ZeroDivisionError", "the wheel came off"):
        estimator.estimate(THETA, state)
    ray.get(actor.__ray_call__.remote(lambda self: setattr(self.pools[0], "how", "die")))
    with raises_naming(PoolError, "actor", "workers"):
        estimator.estimate(THETA, state)


def test_from_the_command_line(cluster, swimmers, tmp_path):
    """Begun with two actors, continued with one and then without, it ends as one run here."""
    short = ["swimmer", "--set", "horizon=24", "--window", 8, "--workers", 5, "--lr", 0.01]
    short += ["--eval-every", 1]  # by default it depends on the number of updates
    away, here = tmp_path / "away", tmp_path / "here"
    for command in (
        ["train", *short, "--updates", 3, "--ray", "auto", "--actors", 2, "--out", away],
        ["resume", away, "--updates", 5, "--actors", 1],
        ["resume", away, "--updates", 7, "--ray", "none"],
        ["train", *short, "--updates", 7, "--out", here],
    ):
        with as_users_run():
            result = CliRunner().invoke(app, [str(word) for word in [*command, "--quiet"]])
        assert result.exit_code == 0, result.output
    mine, theirs = runs.Run.open(away), runs.Run.open(here)
    assert mine.settings == theirs.settings
    np.testing.assert_allclose(mine.theta(), theirs.theta(), rtol=1e-3)
    assert mine.metrics["total_steps"].tolist() == theirs.metrics["total_steps"].tolist()


@pytest.mark.scripts
def test_code_of_the_documentation(cluster, swimmers, closing):
    text = (TESTS.parent / "docs" / "scaling.md").read_text()
    (code,) = [c for c in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "Ray(" in c]
    names = {}
    exec(code, names)
    closing(names["estimator"].placement)
    assert names["estimator"].horizon == 1000


@pytest.mark.scripts
def test_the_benchmark(cluster, swimmers):
    (row,), drawn = actors.overhead(quick=True), actors.drawing(quick=True)
    assert 0 < row["send"] < row["whole"]
    # A few dozen bytes for each worker, and theta both ways.
    assert 400 < row["theta_bytes"] < 1000
    assert 20 * 100 < row["out_bytes"] < 60 * 100
    assert 20 * 100 + 400 < row["in_bytes"] < 60 * 100
    assert drawn["seconds_a_number"] > 0


class Broken(MujocoPool):
    """Fails when it is told to."""

    how = None

    def advance(self, *arguments, **options):
        if self.how == "raise":
            raise ZeroDivisionError("the wheel came off")
        if self.how == "die":
            os._exit(1)
        return super().advance(*arguments, **options)


def not_there():
    raise OSError("no simulator on this machine")


def test_bad_settings_and_pools_are_refused(cluster, swimmers, closing):
    make = functools.partial(nres.NRES, workers=2, window=8, sigma=0.3)
    with raises_naming(TypeError, "make_pool"):
        Ray(make_pool=swimmer(), actors=1)
    with raises_naming(ValueError, "actors", 0):
        Ray(actors=0)
    with raises_naming(ValueError, "actors", 99):
        make(swimmer(), placement=Ray(actors=99))
    unportable = swimmer()
    unportable.lock = threading.Lock()
    with raises_naming(TypeError, "MujocoPool", "lock"):
        make(unportable, placement=Ray(actors=1))
    lock = threading.Lock()
    with raises_naming(TypeError, "lock"):
        make(swimmer(), placement=Ray(make_pool=lambda: lock, actors=1))
    with raises_naming(PoolError, "OSError", "no simulator on this machine"):
        make(swimmer(), placement=Ray(make_pool=not_there, actors=1))
    with raises_naming(ValueError, "horizon", 24):
        make(swimmer(horizon=30), placement=Ray(make_pool=swimmer, actors=1))
    with raises_naming(ValueError, "theta"):
        swimmers(make).init(jnp.zeros(3), KEY)
    with raises_naming(ValueError, "allow_stale"):
        nres.FullES(swimmer(), workers=2, sigma=0.3, placement=Ray(actors=1, allow_stale=True))
    with raises_naming(ValueError, "MujocoPool('Swimmer'"):
        make(swimmer(), placement=swimmers(make).placement)
    placed = swimmers(make)
    state = placed.init(THETA, KEY)
    odd = nres.Carry(gather_state(placed, THETA, state).carry.noise, {"x": np.zeros(3)})
    with raises_naming(PoolError, "(members, workers)"):
        placed.estimate(THETA, eqx.tree_at(lambda s: s.carry, state, odd))


def test_all_actors_but_one_are_lost_and_there_is_room_for_none(swimmers, monkeypatch):
    """None of the dead is asked to take the place of another."""
    monkeypatch.setattr("nres.placement.ray.placement.ATTEMPTS", 2)
    placed = swimmers(STRATEGIES["NRES"])
    crew = placed.placement.crew
    crew.crowded_until = float("inf")

    def kill(i):
        if i == 2:
            for actor in crew.actors[:2]:
                os.kill(process_of(actor), 9)

    alone = estimates(STRATEGIES["NRES"](swimmer()), THETA, 4)
    together = estimates(placed, THETA, 4, before=kill)
    assert_close(alone, together)
    assert [reported(e, "restarted") for e in together] == [0, 0, 3, 0]
    assert len(set(crew.actors)) == 1


def test_moments_of_observations_are_those_of_one_process(cluster, closing):
    pool = swimmer(normalise=True)
    theta = pool.initial_theta(KEY)
    with as_users_run():
        one, several = (
            nres.train(
                STRATEGIES["NRES"](pool, placement=placement),
                optax.sgd(0.1),
                theta,
                updates=4,
                key=KEY,
            ).theta
            for placement in (nres.placement.Local(), closing(Ray(actors=2)))
        )
    assert one["observations"].count == 4 * 2 * 5 * 8
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4), one, several)
