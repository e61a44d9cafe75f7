"""Workers in the actors of a real Ray cluster, of which machines get lost."""

import contextlib
import functools
import os
import re
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import ray
from ray.cluster_utils import Cluster
from typer.testing import CliRunner

import nres
from helpers import Spiral, as_users_run, spiral_theta
from nres import runs
from nres.cli import app
from nres.estimators.remote import portable
from nres.pools import MujocoPool, PoolError, RayPool

# Ray starts processes by a fork that does nothing but that.
pytestmark = pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning")

TESTS = Path(__file__).parent
sys.path.append(str(TESTS.parent / "benchmarks"))
import actors  # noqa: E402

KEY = jax.random.key(2)
swimmer = functools.partial(MujocoPool, "swimmer", horizon=24, threads=1)
THETA = jnp.linspace(-0.5, 0.5, 16).reshape(2, 8)
ESTIMATORS = {
    "NRES": lambda pool: nres.NRES(pool, workers=5, window=8, sigma=0.3),
    "PES": lambda pool: nres.PES(pool, workers=5, window=8, sigma=0.3),
    "GPES": lambda pool: nres.GPES(
        pool, workers=5, window=4, period=8, sigma=0.3, noise="regenerate"
    ),
    "TES": lambda pool: nres.TES(pool, workers=5, window=8, sigma=0.3),
    "FullES": lambda pool: nres.FullES(pool, workers=5, sigma=0.3),
}


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{TESTS}:{TESTS.parent / 'benchmarks'}")  # for actors, too
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 5})
        ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def closing():
    """Lets pools of a test give back their actors."""
    with contextlib.ExitStack() as stack:
        yield lambda pool: stack.enter_context(contextlib.closing(pool))


@pytest.fixture(scope="module")
def pool(cluster):
    pool = RayPool(swimmer, actors=3, patience=60)
    yield pool
    pool.close()


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


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_same_as_without_ray(name, pool):
    alone = estimates(ESTIMATORS[name](swimmer()), THETA, 5, drift=0.01)
    together = estimates(ESTIMATORS[name](pool), THETA, 5, drift=0.01)
    assert_close(alone, together)
    assert [e.steps for e in alone] == [e.steps for e in together]
    assert alone[-1].state.unlock_steps == together[-1].state.unlock_steps


def killing(pool, share, when):
    """Kill the actor of a share before this estimate."""

    def before(i):
        if i == when:
            os.kill(process_of(pool._actors[share]), 9)

    return before


def test_a_lost_actor_is_replaced_and_its_workers_are_restarted(pool):
    """At parameters that do not move, restarted workers are where they were."""
    for name in ("PES", "TES"):
        alone = estimates(ESTIMATORS[name](swimmer()), THETA, 5)
        together = estimates(ESTIMATORS[name](pool), THETA, 5, before=killing(pool, 1, 3))
        assert_close(alone, together)
        assert [int(e.info.restarted) for e in together] == [0, 0, 0, 2, 0]
        # They were unrolled again, by all members, which is not free.
        starts = np.asarray(alone[3].info.window_start)[1:3]
        members = 3 if name == "TES" else 2
        again = together[3].steps.total - alone[3].steps.total
        assert again == members * starts.sum() > 0


def test_restarted_workers_weigh_the_noises_they_were_restarted_with(cluster, closing):
    """Under a schedule, an episode that begins anew has one sigma: that of its present noise."""
    pool = closing(RayPool(swimmer, actors=1))
    make = functools.partial(nres.GPES, workers=6, window=4, period=8)
    found = estimates(
        make(pool, sigma=lambda u: jnp.where(u < 3, 0.5, 0.2)),
        THETA,
        4,
        before=killing(pool, 0, 3),
    )[3].info
    new = np.asarray(found.window_start) % 8 == 0
    assert {True, False} == set(new.tolist())
    for sigma, workers in ((0.2, new), (0.5, ~new)):
        constant = estimates(make(swimmer(), sigma=sigma), THETA, 4)[3].info
        np.testing.assert_allclose(
            found.contribution_norm[workers], constant.contribution_norm[workers], rtol=1e-4
        )


def test_states_go_from_actors_to_a_checkpoint_and_on_to_others(pool):
    make = functools.partial(nres.PES, workers=5, window=8, sigma=0.3)
    alone = estimates(make(swimmer()), THETA, 5)
    state = estimates(make(pool), THETA, 3)[-1].state
    os.kill(process_of(pool._actors[2]), 9)  # what is lost is made anew
    saved = portable(make(pool), THETA, state)
    expected = jax.tree.leaves(alone[2].state.carry)
    for leaf, other in zip(jax.tree.leaves(saved.carry), expected, strict=True):
        assert leaf.shape == other.shape
        assert leaf.dtype == other.dtype
    found = []
    for _ in range(2):  # twice from the same state, as if it had been copied
        estimate = make(pool).estimate(THETA, saved)
        found.append([estimate, make(pool).estimate(THETA, estimate.state)])
    assert_close(alone[3:], found[0])
    assert_close(alone[3:], found[1])


def test_a_jax_system(cluster, closing):
    pool = closing(RayPool(Spiral, actors=2))
    theta = spiral_theta()
    make = functools.partial(nres.NRES, workers=4, window=4, sigma=0.1)
    alone, together = (estimates(make(p), theta, 4, drift=0.01) for p in (Spiral(), pool))
    assert_close(alone, together)
    keys = pool.fetch(together[-1].state.carry.pool)[0].state["key"]
    assert (keys == alone[-1].state.carry.pool.state["key"]).all()
    one, other = (nres.evaluate(p, theta, KEY, episodes=3).losses for p in (Spiral(), pool))
    np.testing.assert_allclose(one, other, rtol=1e-5)


def fading(update):
    return 0.3 / (1.0 + update.astype(float))


class Sluggish(MujocoPool):
    """The pool that is told so takes its time."""

    slow = False

    def advance(self, *arguments, **options):
        if self.slow:
            time.sleep(1.0)
        return super().advance(*arguments, **options)


def test_stragglers_are_waited_for_unless_staleness_is_allowed(cluster, closing):
    sluggish = functools.partial(Sluggish, "swimmer", horizon=24, threads=1)
    pool = closing(RayPool(sluggish, actors=2, allow_stale=True))
    ray.get(pool._actors[1].__ray_call__.remote(lambda self: setattr(self.pools[1], "slow", True)))
    make = functools.partial(nres.PES, workers=4, window=8, sigma=fading)
    estimator = make(pool)
    state, found = estimator.init(THETA, KEY), []
    began = time.perf_counter()
    for _ in range(3):
        found.append(estimator.estimate(THETA, state))
        state = found[-1].state
    assert [int(e.info.late) for e in found] == [0, 2, 2]
    assert [int(e.info.nonfinite) for e in found] == [0, 0, 0]
    assert time.perf_counter() - began < 2.5
    # What is late is not lost: it is the window that was asked for then, with its noise.
    time.sleep(1.2)
    last = estimator.estimate(THETA, state)
    assert int(last.info.late) == 0
    alone = make(swimmer())
    second = estimates(alone, THETA, 2)[1]
    np.testing.assert_allclose(
        last.info.contribution_norm[2:], second.info.contribution_norm[2:], rtol=1e-4
    )
    assert last.state.workers.start[2:].tolist() == second.state.workers.start[2:].tolist()
    states, score = pool.fetch(found[-1].state.carry.pool)  # before what is late
    assert states["rows"].shape[:2] == (2, 4)
    assert score.shape == (4, *THETA.shape)


def test_a_node_is_lost_in_the_middle_of_a_run(cluster, pool, closing):
    """Two of four actors are on it, and there is no room for others: two must do."""
    node = cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    pool = closing(RayPool(swimmer, actors=4))
    pool.patience = 2
    before = list(pool._actors)
    estimator = nres.NRES(pool, workers=8, window=8, sigma=0.3)

    def lose_node(progress):
        if progress.state.update == 3:
            cluster.remove_node(node, allow_graceful=False)

    with as_users_run():
        result = nres.train(
            estimator, optax.sgd(0.1), THETA, updates=8, key=KEY, callback=lose_node
        )
    assert result.state.update == 8
    assert result.history.restarted.tolist() == [0, 0, 0, 4, 0, 0, 0, 0]
    assert result.history.nonfinite.sum() == 0
    assert len(set(pool._actors)) == 2
    assert set(pool._actors) < set(before)


def test_a_simulator_that_fails_is_told_from_a_machine_that_is_lost(cluster, closing, monkeypatch):
    monkeypatch.setattr("nres.pools.ray.pool.ATTEMPTS", 1)
    pool = closing(RayPool(functools.partial(Broken, "swimmer", horizon=24, threads=1), actors=1))
    estimator = nres.NRES(pool, workers=2, window=8, sigma=0.3)
    state = estimator.init(THETA, KEY)
    ray.get(
        pool._actors[0].__ray_call__.remote(lambda self: setattr(self.pools[0], "how", "raise"))
    )
    with pytest.raises(PoolError, match=r"on an actor: ZeroDivisionError\('the wheel came off'"):
        estimator.estimate(THETA, state)
    ray.get(pool._actors[0].__ray_call__.remote(lambda self: setattr(self.pools[0], "how", "die")))
    with pytest.raises(PoolError, match="1 actors in a row died of the same workers"):
        estimator.estimate(THETA, state)
    with pytest.raises(PoolError, match="an actor was lost, and the states that it kept"):
        pool.fetch(state.carry.pool)


def test_from_the_command_line(cluster, pool, tmp_path):
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
def test_code_of_the_documentation(cluster, pool, closing):
    text = (TESTS.parent / "docs" / "scaling.md").read_text()
    (code,) = [c for c in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "RayPool" in c]
    names = {}
    exec(code, names)
    closing(names["pool"])
    assert names["estimator"].horizon == 1000


@pytest.mark.scripts
def test_the_benchmark(cluster, pool):
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


def test_what_does_not_make_a_pool(cluster, pool):
    with pytest.raises(TypeError, match="needs a function that makes a pool"):
        RayPool(swimmer(), actors=1)
    with pytest.raises(ValueError, match="actors must be at least 1, got 0"):
        RayPool(swimmer, actors=0)
    with pytest.raises(ValueError, match="99 actors with cpus=1 need 99 processors, and the Ray"):
        RayPool(swimmer, actors=99)
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"cannot be sent to other machines: .*lock"):
        RayPool(lambda: lock, actors=1)
    with pytest.raises(PoolError, match=r"failed on an actor: OSError\('no simulator on this"):
        RayPool(not_there, actors=1)
    with pytest.raises(ValueError, match="theta does not fit"):
        pool.check(jnp.zeros(3))
    with pytest.raises(TypeError, match="RayPool is a black box"):
        nres.BPTT(pool, workers=2)
    with pytest.raises(PoolError, match="axes \\(members, workers\\) in front"):
        pool.adopt({"x": np.zeros(3)})


def test_all_actors_but_one_are_lost_and_there_is_room_for_none(pool, monkeypatch):
    """None of the dead is asked to take the place of another."""
    monkeypatch.setattr("nres.pools.ray.pool.ATTEMPTS", 2)
    pool._crowded_until = float("inf")

    def kill(i):
        if i == 2:
            for actor in pool._actors[:2]:
                os.kill(process_of(actor), 9)

    alone = estimates(ESTIMATORS["NRES"](swimmer()), THETA, 4)
    together = estimates(ESTIMATORS["NRES"](pool), THETA, 4, before=kill)
    assert_close(alone, together)
    assert [int(e.info.restarted) for e in together] == [0, 0, 3, 0]
    assert len(set(pool._actors)) == 1
