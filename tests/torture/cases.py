"""Wrong systems, pools, files and callbacks for the calls of the API attack."""

import io
import json
import os
import random
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax  # noqa: F401, for the calls
from faulty_pool import FaultyPool  # noqa: F401, for the calls

import nres

KEY = jax.random.key(0)
THETA = jnp.array([0.3, 0.2])

# Results of `init` and of `step`, most of them wrong.
STARTS = {
    "good": lambda key: jnp.zeros(2),
    "float": lambda key: 0.0,
    "none": lambda key: None,
    "text": lambda key: "state",
    "numpy": lambda key: np.zeros(2),
    "tuple": lambda key: (jnp.zeros(2), 1.0, None),
    "empty": lambda key: jnp.zeros((0,)),
    "nothing": lambda key: (),
    "object": lambda key: object(),
    "key": lambda key: key,
    "complex": lambda key: jnp.zeros(2, complex),
    "whole": lambda key: jnp.zeros(2, int),
    "bool": lambda key: jnp.zeros(2, bool),
    "half": lambda key: jnp.zeros(2, jnp.bfloat16),
    "nan": lambda key: jnp.zeros(2) / 0,
    "dict": lambda key: {1: jnp.zeros(2), "a": jnp.zeros(2)},
    "class": lambda key: jnp.ndarray,
}
ENDS = {
    "good": lambda state, theta, t, loss: (state, loss),
    "float": lambda state, theta, t, loss: (state, 0.5),
    "none": lambda state, theta, t, loss: None,
    "one": lambda state, theta, t, loss: (state,),
    "four": lambda state, theta, t, loss: (state, loss, True, 1),
    "list": lambda state, theta, t, loss: [state, loss],
    "text": lambda state, theta, t, loss: (state, "loss"),
    "numpy": lambda state, theta, t, loss: (state, np.float32(1.0)),
    "shape": lambda state, theta, t, loss: (state, theta),
    "whole": lambda state, theta, t, loss: (state, t),
    "bool": lambda state, theta, t, loss: (state, t > 0),
    "complex": lambda state, theta, t, loss: (state, loss + 1j),
    "state": lambda state, theta, t, loss: (None, loss),
    "other": lambda state, theta, t, loss: ((state, state), loss),
    "words": lambda state, theta, t, loss: ("state", loss),
    "half": lambda state, theta, t, loss: (
        jax.tree.map(lambda x: x.astype(jnp.bfloat16), state),
        loss,
    ),
    "ended": lambda state, theta, t, loss: (state, loss, 1),
    "ends": lambda state, theta, t, loss: (state, loss, t > 3),
    "nan": lambda state, theta, t, loss: (state, loss / 0 * 0),
    "infinite": lambda state, theta, t, loss: (state, loss / 0),
    "constant": lambda state, theta, t, loss: (state, jnp.float32(1.0)),
    "double": lambda state, theta, t, loss: (state, loss.astype(jnp.float16)),
    "generator": lambda state, theta, t, loss: (x for x in (state, loss)),
    "raises": lambda state, theta, t, loss: 1 / 0,
    "branch": lambda state, theta, t, loss: (state, loss) if loss > 0 else (state, -loss),
    "swapped": lambda state, theta, t, loss: (loss, state),
}


class Wave(nres.System):
    """A good system."""

    horizon: int = 12

    def init(self, theta, key):
        return jnp.stack([theta[0], jax.random.uniform(key)])

    def step(self, state, theta, t, key):
        state = jnp.tanh(state + theta[1])
        return state, jnp.sum(state**2)


class Broken(nres.System):
    """A system whose `init` or `step` may return something invalid."""

    start: str = "good"
    end: str = "good"
    horizon: int = 12

    def init(self, theta, key):
        return STARTS[self.start](key)

    def step(self, state, theta, t, key):
        return ENDS[self.end](state, theta, t, jnp.sum(theta**2))


def use(estimator, theta, key):
    """Make two estimates as a training loop would."""
    state = estimator.init(theta, key)
    estimate = estimator.estimate(theta, state)
    return estimator.estimate(theta, estimate.state)


def optimizer_file(settings, kind="PerParameterMLP", about=None, version=1, text=None):
    """Write a file that claims to contain an optimizer."""
    description = {"optimizer": kind, "settings": settings, "format": version, "about": about}
    text = json.dumps(description) if text is None else text
    path = Path("optimizer.npz")
    np.savez_compressed(path, description=np.frombuffer(text.encode(), np.uint8), theta=np.ones(2))
    return path


def file(kind, seed=0):
    """Write a file of some kind, good or bad, and return its path."""
    chance, path = random.Random(seed), Path("theta.npz")
    for other in (path, Path("folder.npz")):
        if other.is_symlink() or (other.exists() and not other.is_dir()):
            other.unlink()
    if kind == "missing":
        return "nowhere.npz"
    if kind == "folder":
        Path("folder.npz").mkdir(exist_ok=True)
        return "folder.npz"
    if kind == "zeros":
        path.symlink_to("/dev/zero")
        return path
    if kind == "pipe":
        os.mkfifo(path)
        return path
    path.write_bytes(_content(kind, chance))
    return path


def _content(kind, chance):
    whole = io.BytesIO()
    np.savez(whole, theta=np.asarray(THETA))
    data = bytearray(whole.getvalue())
    if kind == "truncated":
        return data[: chance.randrange(len(data))]
    if kind == "flipped":
        for _ in range(chance.choice([1, 3, 20])):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        return data
    if kind == "bytes":
        return chance.randbytes(chance.choice([0, 1, 100, 10_000]))
    if kind == "good":
        return data
    member = {
        "bomb": lambda: b"\0" * 2**28,
        "huge": lambda: _header("<f4", "(99999999999,)"),
        "negative": lambda: _header("<f4", "(-2,)"),
        "objects": lambda: _header("|O", "(2,)"),
        "code": lambda: _header("<f4", "__import__('os').abort()"),
        "text": lambda: _header("<U8", "(2,)") + b"\0" * 64,
        "complex": lambda: _header("<c8", "(2,)") + b"\0" * 16,
        "whole": lambda: _header("<i4", "(2,)") + b"\0" * 8,
        "fields": lambda: _header("[('a', '<f4')]", "(2,)") + b"\0" * 8,
        "deep": lambda: _header("<f4", "(" * 3000 + ")" * 3000),
        "nan": lambda: _header("<f4", "(2,)") + b"\xff" * 8,
        "long": lambda: _header("<f8", "(1000,)") + b"\0" * 8000,
    }[kind]()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("theta.npy", member)
    return whole.getvalue()


def _header(dtype, shape):
    dtype = dtype if dtype.startswith("[") else repr(dtype)
    text = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
