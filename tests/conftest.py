"""Strict settings for every test: shapes and dtypes are checked, nothing is promoted silently."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the suite's time is compilation of programs that then run for milliseconds.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import jax
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

with install_import_hook("nres", "beartype.beartype"):
    import nres  # noqa: F401


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield
