"""Strict settings for every test: shapes and dtypes are checked, nothing is promoted silently."""

import atexit
import os
import shutil
import tempfile
import warnings
from importlib.metadata import version

from packaging.version import Version

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# All processes of a session, and those that tests start, share what they compile.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    cache = tempfile.mkdtemp(prefix="nres-tests-")
    atexit.register(shutil.rmtree, cache, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = cache
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
# What nres remembers of its user is kept apart, too.
if "NRES_TESTS_STATE" not in os.environ:
    state = tempfile.mkdtemp(prefix="nres-tests-state-")
    atexit.register(shutil.rmtree, state, ignore_errors=True)
    os.environ["NRES_TESTS_STATE"] = os.environ["XDG_STATE_HOME"] = state
# Most of the suite's time is compilation of programs that then run for milliseconds.
os.environ.setdefault(
    "XLA_FLAGS",
    # Several devices for the tests that want them; all others use the first.
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    # Code is generated in one piece, as every process has one core at most.
    " --xla_cpu_parallel_codegen_split_count=1"
    # Newer versions do not know this flag, and would end at once.
    + " --xla_cpu_use_fusion_emitters=false"
    * (Version(version("jaxlib")) < Version("0.11")),
)

import jax
import jaxtyping
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

with install_import_hook("nres", "beartype.beartype"):
    import nres
    import nres.checkpoint
    import nres.data
    import nres.runs
    import nres.variance


# Long ones first, so that no process is left with one at the end.
LONG = (
    "test_cli.py",
    "test_contract.py",
    "test_ray.py",
    "test_differentiating.py",
    "test_against_reference.py",
    "test_forward_mode.py",
    "test_variance_predicted.py",
    "test_variance_measured.py",
    "test_commands.py",
    "test_reproduce.py",
    "test_report_browser.py",
    "test_report.py",
    "test_first_steps.py",
    "test_train.py",
    "test_unbiased.py",
    "test_identities.py",
    "test_learned_optimizer.py",
    "test_trust.py",
)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


@pytest.fixture
def undrawn(monkeypatch):
    """Make figures without drawing them, which would take most of the time of short commands."""
    monkeypatch.setattr("nres.figures.save_figure", lambda figure, path: path.touch())


@pytest.fixture(scope="session")
def compilations():
    """The names of the programs compiled so far; tests clear the list and look at it again."""
    names = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **facts: (
            names.append(facts.get("fun_name", event)) if "backend_compile" in event else None
        )
    )
    jax.jit(lambda x: x + 1)(1.0)
    assert names, "this version of JAX reports compilations in another way"
    return names


@pytest.fixture
def x64():
    jax.config.update("jax_enable_x64", True)  # in a way that all versions know
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.fixture
def unchecked_types():
    """Skip type checks where small functions are called so often that checks take most time."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def strict():
    """Turn the warning about formed matrices into an error; it is given once per process."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", nres.pools.MaterialisedWarning)
        nres.pools.lazy._warn.cache_clear()
        yield
    nres.pools.lazy._warn.cache_clear()
