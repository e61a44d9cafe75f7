"""Parameters in `.npz` files: one array per leaf, named by its path, and nothing executable."""

import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from nres.checks import check_memory
from nres.files import open_plain, replacing
from nres.system import Theta

# The maximal size of an array's header in a file.
_HEADER = 10_000
_FAILURES = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    EOFError,
    RuntimeError,
    RecursionError,
    zipfile.BadZipFile,
    zlib.error,
)


class WeightsError(ValueError):
    """Error for a file that does not hold the expected parameters."""


def named_arrays(theta: Theta) -> dict[str, np.ndarray]:
    """Return the leaves of `theta` by name, for example `theta['rate']`."""
    leaves = jax.tree_util.tree_leaves_with_path(theta)
    return {f"theta{jax.tree_util.keystr(path)}": np.asarray(leaf) for path, leaf in leaves}


def save(path: str | Path, theta: Theta, **more: Any) -> None:
    """Write parameters to an `.npz` file, which `nres.load` and `nres train --from` read.

    Args:
        path: The file. Its name must end in `.npz`; an existing file is replaced.
        theta: The parameters, any pytree of arrays.
        more: Further arrays to store, by name.

    Raises:
        WeightsError: If the name does not end in `.npz`.

    Example:
        ```python
        nres.save("mine.npz", result.theta)
        theta = nres.load("mine.npz", like=system.initial_theta(key))
        ```
    """
    path = Path(path)
    if path.suffix != ".npz":
        raise WeightsError(f"{path} must end in .npz.")
    with replacing(path) as partial:
        arrays: dict[str, Any] = named_arrays(theta) | more
        np.savez(partial, **arrays)


def load(path: str | Path, like: PyTree, *, follow: bool = True) -> Theta:
    """Read parameters from an `.npz` file of `nres.save`, `nres export` or `numpy.savez`.

    Args:
        path: The file. Nothing in it is executed.
        like: Parameters of the same structure, shapes and dtypes.
        follow: False to refuse a file that is a symbolic link.

    Returns:
        The parameters, in the structure of `like`.

    Raises:
        WeightsError: If the file cannot be read, or holds other parameters than `like`.
    """
    with Archive(path, follow=follow) as archive:
        return archive.theta(like)


class Archive:
    """An `.npz` file from an untrusted source: arrays larger than expected are not unpacked."""

    def __init__(self, path: str | Path, *, follow: bool = True):
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"the path of a file must be text or a path, got {path!r}.")
        self.path = path
        self._file = open_plain(Path(path), follow=follow)
        try:
            self._zip = zipfile.ZipFile(self._file)
            self.names = {name.removesuffix(".npy") for name in self._zip.namelist()}
        except _FAILURES as error:
            self._file.close()
            raise WeightsError(f"{path} is not an .npz file: {error}.") from error

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, *exception: object) -> None:
        self._zip.close()
        self._file.close()

    def read(self, name: str, largest: int) -> np.ndarray:
        """Read one array of at most `largest` bytes."""
        try:
            if self._zip.getinfo(f"{name}.npy").file_size > largest + _HEADER:
                raise ValueError(f"{name} has more than {largest:,} bytes")
            check_memory(2 * largest, f"the array {name}")
            with self._zip.open(f"{name}.npy") as member:
                header = {
                    (1, 0): np.lib.format.read_array_header_1_0,
                    (2, 0): np.lib.format.read_array_header_2_0,
                }[np.lib.format.read_magic(member)]
                shape, fortran, dtype = header(member, max_header_size=_HEADER)
                if dtype.hasobject:
                    raise ValueError(f"{name} holds Python objects")
                content = member.read(largest + 1)
            array = np.frombuffer(content, dtype)
            return array.reshape(shape, order="F" if fortran else "C")
        except _FAILURES as error:
            raise WeightsError(f"{self.path} cannot be read: {error}.") from error

    def theta(self, like: PyTree) -> Theta:
        """Read the parameters, in the structure of `like`."""
        named, structure = jax.tree_util.tree_flatten_with_path(like)
        leaves: list[Any] = []
        for path, leaf in named:
            name = f"theta{jax.tree_util.keystr(path)}"
            try:
                shape, dtype = np.shape(leaf), np.dtype(jnp.result_type(leaf))
            except TypeError as error:
                raise WeightsError(f"`like` must have numbers as {name}: {error}") from error
            found = None
            if name in self.names:
                # Twice the size, because a file may hold double precision where single is wanted.
                found = self.read(name, 2 * dtype.itemsize * int(np.prod(shape, dtype=np.int64)))
            if found is None or found.shape != shape:
                there = "nothing" if found is None else list(found.shape)
                raise WeightsError(
                    f"{self.path}: {name} should have the shape {list(shape)}, but has {there}."
                )
            if found.dtype.kind == "V" and found.dtype.itemsize == dtype.itemsize:
                found = found.view(dtype)  # NumPy does not know bfloat16 and stores its bytes
            if not np.issubdtype(found.dtype, np.floating) and found.dtype != dtype:
                raise WeightsError(f"{self.path}: {name} has dtype {found.dtype}, not {dtype}.")
            leaves.append(jnp.asarray(found, dtype))
        return jax.tree.unflatten(structure, leaves)
