"""Learned optimizers for other libraries: PyTorch, PyLO, and the authors' code of Celo2."""

import functools
import importlib.resources
import json
import keyword
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from nres.files import read_plain, replacing, write_text
from nres.system import Theta, check_finite
from nres.systems.learned_optimizer.adafactor_mlp import AdafactorMLP
from nres.systems.learned_optimizer.celo2 import INPUTS, Celo2
from nres.systems.learned_optimizer.export import (
    OptimizerFileError,
    read_optimizer,
    save_optimizer,
)
from nres.systems.learned_optimizer.fusing import Layers
from nres.systems.learned_optimizer.optimizers import (
    LayeredMLP,
    LearnableOptimizer,
    PerParameterMLP,
    PerParameterNetwork,
)

TEMPLATE = "foreign/torch_optimizer.py"
# The optimizers that exist for torch, and their names there.
TORCH: Mapping[type, str] = {
    Celo2: "Celo2",
    AdafactorMLP: "AdafactorMLP",
    PerParameterMLP: "PerParameterMLP",
    LayeredMLP: "PerParameterMLP",
}
# Modules that the template imports.
TAKEN = ("json", "math", "pathlib", "torch")
# The number of inputs in each of the groups in which others store the first layer of Celo2.
GROUPS = (1, 1, 1, 3, 1, 3, 1, 3, 1, 3, 3, 3, 3, 3)
# The number of the extension type with which flax stores arrays in msgpack.
ARRAY = 1
FLOATS = ("float32", "float64")
LARGEST_FILE = 10_000_000
Arrays = dict[str, Float[np.ndarray, "..."]]


def write_torch(path: Path, optimizer: LearnableOptimizer, theta: Theta) -> tuple[Path, Path]:
    """Write an optimizer for PyTorch: a module that needs torch alone, and its weights.

    Args:
        path: The `.py` file; the weights are written beside it, as `.safetensors`.
        optimizer: A `Celo2`, an `AdafactorMLP` or a `PerParameterMLP`.
        theta: Its parameters.

    Returns:
        The two files.

    Raises:
        OptimizerFileError: If the optimizer is none of these, or `path` is no name of a module.

    Example:
        ```python
        write_torch(Path("mine.py"), optimizer, theta)     # from mine import LearnedOptimizer
        ```
    """
    name = path.stem
    if path.suffix != ".py" or not name.isidentifier() or keyword.iskeyword(name) or name in TAKEN:
        raise OptimizerFileError(f"{path} must be the name of a new Python module, as in mine.py.")
    source = importlib.resources.files("nres.systems.learned_optimizer").joinpath(TEMPLATE)
    weights = path.with_suffix(".safetensors")
    if weights.exists() and not path.exists():
        raise OptimizerFileError(f"{weights} exists and is not of {path}: choose another name.")
    with replacing(weights) as partial:
        partial.write_bytes(_for_torch(optimizer, theta))
    write_text(path, source.read_text(encoding="utf-8").replace("NAME", path.stem))
    return path, weights


def load_torch_optimizer(path: str | Path) -> Callable[..., Any]:
    """Load an optimizer for PyTorch.

    Args:
        path: A file of `save_optimizer` or `nres export`; or `"celo2"`, which comes with nres.

    Returns:
        A function of parameters, or of groups of them, that returns a `torch.optim.Optimizer`.
        Its options are `lr` and `weight_decay`.

    Raises:
        OptimizerFileError: If the file holds no optimizer that exists for torch.
        FileNotFoundError: If there is no such file.
        ImportError: If torch is not installed.

    Example:
        ```python
        optimizer = nres.load_torch_optimizer("celo2")(model.parameters(), lr=1e-3)
        ```
    """
    learnable, theta, _ = read_optimizer(path)
    content = _for_torch(learnable, theta)
    try:
        from nres.systems.learned_optimizer.foreign.torch_optimizer import LearnedOptimizer
    except ImportError as error:
        raise ImportError("load_torch_optimizer needs PyTorch: pip install torch.") from error
    return functools.partial(LearnedOptimizer, weights=content)


def write_pylo(path: Path, optimizer: LearnableOptimizer, theta: Theta) -> tuple[Path]:
    """Write the weights of a `Celo2` as a state dict of PyLO's `CELO2MLP`, in safetensors.

    Args:
        path: The `.safetensors` file.
        optimizer: The `Celo2`.
        theta: Its parameters.

    Returns:
        The file. Load it with `network.load_state_dict(safetensors.torch.load_file(path))`.

    Raises:
        OptimizerFileError: If the optimizer is another, or the name has another ending.
    """
    if path.suffix != ".safetensors":
        raise OptimizerFileError(f"{path} must end in .safetensors.")
    if path.with_suffix(".py").exists():
        raise OptimizerFileError(f"{path} belongs to the module beside it: choose another name.")
    first, *others = _celo2_layers(optimizer, theta)
    arrays = {f"w0.{i}": part for i, part in enumerate(_split(first["weight"]))}
    arrays["b0"] = first["bias"]
    for i, layer in enumerate(others):
        arrays[f"dense_w.{i}"], arrays[f"dense_b.{i}"] = layer["weight"], layer["bias"]
    with replacing(path) as partial:
        partial.write_bytes(_safetensors(arrays, {"format": "pt"}))
    return (path,)


def write_celo2(path: Path, optimizer: LearnableOptimizer, theta: Theta) -> tuple[Path]:
    """Write the weights of a `Celo2` as its authors' code stores them, in msgpack.

    Args:
        path: The `.msgpack` file.
        optimizer: The `Celo2`.
        theta: Its parameters.

    Returns:
        The file.

    Raises:
        OptimizerFileError: If the optimizer is another, or the name has another ending.
    """
    if path.suffix != ".msgpack":
        raise OptimizerFileError(f"{path} must end in .msgpack.")
    first, *others = _celo2_layers(optimizer, theta)
    arrays = {f"w0__{i}": part for i, part in enumerate(_split(first["weight"]))}
    arrays["b0"] = first["bias"]
    for i, layer in enumerate(others, 1):
        arrays[f"w{i}"], arrays[f"b{i}"] = layer["weight"], layer["bias"]
    import msgpack

    packed = msgpack.packb({name: _packed(array) for name, array in arrays.items()})
    with replacing(path) as partial:
        partial.write_bytes(packed)
    return (path,)


def read_celo2(path: str | Path) -> Layers:
    """Read weights of `Celo2` that its authors' code or `nres export --to celo2` wrote.

    Args:
        path: A file in flax's msgpack format. Arrays are recognised by the last parts of their
            names.

    Returns:
        The parameters of a `Celo2`.

    Raises:
        OptimizerFileError: If the file does not hold them.

    Example:
        ```python
        optimizer = Celo2(lr=1e-3).as_optax(read_celo2("theta.state"))
        ```
    """
    import msgpack

    try:
        tree = msgpack.unpackb(
            read_plain(Path(path), LARGEST_FILE), ext_hook=_unpacked, strict_map_key=False
        )
        arrays = dict(_named(tree)) if isinstance(tree, dict) else {}
        weights = [np.concatenate([arrays[f"w0__{i}"] for i in range(len(GROUPS))])]
        weights += [arrays[f"w{i}"] for i in (1, 2)]
        layers = [{"weight": w, "bias": arrays[f"b{i}"]} for i, w in enumerate(weights)]
    except (ValueError, LookupError, TypeError, msgpack.UnpackException) as error:
        raise OptimizerFileError(f"{path} holds no weights of Celo2: {error}.") from error
    shapes = [(layer["weight"].shape, layer["bias"].shape) for layer in layers]
    expected = [((INPUTS, 8), (8,)), ((8, 8), (8,)), ((8, 3), (3,))]
    if shapes != expected:
        raise OptimizerFileError(f"{path} has layers of shapes {shapes}, not {expected}.")
    theta = [{k: jnp.asarray(v, jnp.float32) for k, v in layer.items()} for layer in layers]
    try:
        check_finite(theta)
    except ValueError as error:
        raise OptimizerFileError(f"{path}: {error}") from error
    return theta


FORMATS = {"optax": ".npz", "torch": ".py", "pylo": ".safetensors", "celo2": ".msgpack"}
"""The libraries that an optimizer can be written for, and the endings of their files."""
_WRITERS = {"torch": write_torch, "pylo": write_pylo, "celo2": write_celo2}


def write_for(
    library: str,
    path: Path,
    optimizer: LearnableOptimizer,
    theta: Theta,
    about: dict[str, Any] | None = None,
) -> tuple[Path, ...]:
    """Write an optimizer for a library.

    Args:
        library: A name from `FORMATS`.
        path: The file to write, with the library's ending.
        optimizer: The optimizer.
        theta: Its parameters.
        about: Metadata, as for `save_optimizer`; only the format of optax stores them.

    Returns:
        The files that were written.

    Raises:
        OptimizerFileError: If the library has no such optimizer, or the name another ending.
    """
    if library not in FORMATS:
        raise OptimizerFileError(f"no library is called {library!r}: there are {list(FORMATS)}.")
    if library in _WRITERS:
        return _WRITERS[library](path, optimizer, theta)
    save_optimizer(path, optimizer, theta, about)
    return (path,)


def _for_torch(optimizer: LearnableOptimizer, theta: Theta) -> bytes:
    """Return the weights and a description, as the module for torch reads them."""
    if type(optimizer) not in TORCH:
        raise OptimizerFileError(
            f"{type(optimizer).__name__} cannot be written for torch: only "
            f"{', '.join(kind.__name__ for kind in TORCH)} can."
        )
    about = {"optimizer": TORCH[type(optimizer)], "settings": json.dumps(_settings(optimizer))}
    return _safetensors(_layers_by_name(optimizer, theta), about)


def _settings(optimizer: LearnableOptimizer) -> dict[str, Any]:
    if isinstance(optimizer, Celo2):
        names = ("lr", "weight_decay", "base")
        return {name: getattr(optimizer, name) for name in names}
    return {"step": optimizer.step} if isinstance(optimizer, AdafactorMLP) else {}


def _layers_by_name(optimizer: LearnableOptimizer, theta: Theta) -> Arrays:
    decays: Mapping[str, Any] = {}
    if isinstance(optimizer, Celo2):
        layers = _celo2_layers(optimizer, theta)
    elif isinstance(optimizer, AdafactorMLP):
        layers = theta["layers"]
        decays = {f"decays.{name}": theta[name] for name in ("momenta", "second", "factored")}
    else:
        assert isinstance(optimizer, PerParameterNetwork)
        pairs = optimizer.layers(theta)
        layers = [{"weight": np.asarray(w), "bias": np.asarray(b)} for w, b in pairs]
    named = {f"layers.{i}.{k}": layer[k] for i, layer in enumerate(layers) for k in layer}
    return {name: np.asarray(array, np.float32) for name, array in {**named, **decays}.items()}


def _celo2_layers(optimizer: LearnableOptimizer, theta: Theta) -> list[dict[str, np.ndarray]]:
    if not isinstance(optimizer, Celo2):
        raise OptimizerFileError(f"this format is for Celo2, not for {type(optimizer).__name__}.")
    return [{k: np.asarray(v, np.float32) for k, v in layer.items()} for layer in theta]


def _split(weight: np.ndarray) -> list[np.ndarray]:
    return np.split(weight, np.cumsum(GROUPS)[:-1])


def _safetensors(arrays: Arrays, about: dict[str, str]) -> bytes:
    header: dict[str, Any] = {"__metadata__": about}
    at, parts = 0, []
    for name, array in arrays.items():
        data = np.ascontiguousarray(array, "<f4").tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(array.shape),
            "data_offsets": [at, at + len(data)],
        }
        parts.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the numbers begin at a multiple of eight bytes
    return len(text).to_bytes(8, "little") + text + b"".join(parts)


def _packed(array: np.ndarray) -> Any:
    import msgpack

    array = np.asarray(array, "<f4")
    return msgpack.ExtType(ARRAY, msgpack.packb((array.shape, array.dtype.name, array.tobytes())))


def _unpacked(code: int, data: bytes) -> np.ndarray | None:
    """Return an array of floating-point numbers; `None` for anything else, like a counter."""
    import msgpack

    if code != ARRAY:
        return None
    shape, name, content = msgpack.unpackb(data)
    name = name.decode() if isinstance(name, bytes) else name
    return np.frombuffer(content, name).reshape(shape) if name in FLOATS else None


def _named(tree: Any) -> Any:
    """Yield the arrays of nested dictionaries with the last parts of their names."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _named(value)
        elif isinstance(value, np.ndarray):
            yield str(name).rpartition("/")[2], value
