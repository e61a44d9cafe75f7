"""Checkpoints: pytrees of arrays, saved atomically in the background.

Orbax writes the arrays of each update into a folder of their own, without pickle. An incomplete
folder does not count as a checkpoint. A description of the arrays (name, shape, dtype, checksum)
lies beside them, so that nres recognizes a damaged or foreign checkpoint before it resumes from it.
"""

import errno
import json
import logging
import os
import stat
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from nres import multihost
from nres.errors import first_line

FORMAT = "nres-1"
# Arrays in checkpoints of earlier versions that are no longer needed.
_OBSOLETE = {"['estimator'].unlocked_total", "['estimator'].unlocked_sequential"}
# The name of the metadata on disk, in checkpoints of all versions.
METADATA = "facts"
# Characters that the library below orbax takes for a pattern or a separator.
_UNUSABLE = frozenset("[]" if os.sep == "\\" else "[]\\")


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, read or resumed from."""


class Checkpoints:
    """The checkpoints of one run, of which the newest few are kept.

    If several processes compute a run together, each of them must make every call. Only the first
    reads and writes the folder; the others need not see it.

    ```python
    with nres.checkpoint.Checkpoints("checkpoints") as checkpoints:
        checkpoints.save(100, {"theta": theta}, {"seconds": 1.5})
        checkpoints.wait()
        tree, metadata = checkpoints.restore(100, like={"theta": theta})
    ```

    Args:
        folder: The folder of the checkpoints; it need not exist yet.
        keep: The number of newest checkpoints to keep.
        keep_every: Also keep the checkpoints of all multiples of this number of updates.
        write: Open the folder for writing, which only one process may do at a time, and remove
            incomplete checkpoints of a killed process. Without it, nothing is changed.
    """

    def __init__(
        self,
        folder: str | Path,
        keep: int = 3,
        keep_every: int | None = None,
        write: bool = True,
    ):
        # Imported here, since it takes more than a second.
        import orbax.checkpoint as ocp

        logging.getLogger("absl").setLevel(logging.ERROR)  # orbax logs every save
        if Path(folder).is_symlink():
            raise CheckpointError(f"{folder} is a symbolic link, which nres does not follow.")
        self.folder = Path(folder).resolve()
        if write:
            self.check_folder(self.folder)
        self._ocp = ocp
        self._manager = None
        if not multihost.is_primary():
            return
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            keep_period=keep_every,
            create=False,
            cleanup_tmp_directories=write,
            read_only=not write,
        )
        if multihost.is_multihost():  # by default, orbax would wait for the other processes
            options.multiprocessing_options.active_processes = {0}
            options.multiprocessing_options.barrier_sync_key_prefix = "nres"
        try:
            if write:
                self.folder.mkdir(parents=True, exist_ok=True)
            self._check_files()
            self._manager = ocp.CheckpointManager(self.folder, options=options)
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{self.folder} cannot be used: {first_line(error)}") from error

    def _check_files(self) -> None:
        """Refuse devices, pipes and links among the files: reading one could block or never end."""
        for parent, folders, files in os.walk(self.folder):
            for name in (*folders, *files):
                path = os.path.join(parent, name)
                try:
                    mode = os.lstat(path).st_mode
                except FileNotFoundError:  # a running process replaced the checkpoint
                    continue
                if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                    raise OSError(errno.EINVAL, "it is not a regular file", path)

    @staticmethod
    def check_folder(folder: Path) -> None:
        """Raise an error for a folder from which checkpoints could not be read back."""
        if found := _UNUSABLE.intersection(str(folder.resolve())):
            raise CheckpointError(
                f"checkpoints cannot be saved in {folder}: orbax finds no files below a folder "
                f"with {' or '.join(sorted(found))} in its name. Choose another folder."
            )

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type | None, *exception: object) -> None:
        try:
            if self._manager is not None:
                self._manager.close()
        except Exception:
            if kind is None:  # otherwise the first error matters more
                raise

    def updates(self) -> list[int]:
        """List the updates that have a complete checkpoint."""
        return multihost.from_primary(self._found())

    def save(self, update: int, tree: PyTree, metadata: dict[str, Any]) -> None:
        """Copy the arrays and the metadata, and write them in the background.

        Args:
            update: The number of updates made.
            tree: A pytree of arrays.
            metadata: Values that JSON can hold.
        """
        leaves = [_to_host(leaf) for leaf in jax.tree.leaves(tree)]
        if self._manager is None:
            return
        # Copied, since the caller may change it before it is written.
        metadata = json.loads(json.dumps(metadata))
        description = {
            "format": FORMAT,
            "leaves": _describe(tree, leaves),
            METADATA: metadata,
            "crc32": _metadata_checksum(metadata),
        }
        args = self._ocp.args
        parts = {
            # Orbax does not save empty arrays; the description holds their shapes.
            "arrays": args.StandardSave({str(i): x for i, x in enumerate(leaves) if x.size}),
            METADATA: args.JsonSave(description),
        }
        try:
            self._manager.save(update, args=args.Composite(**parts))
        except Exception as error:
            raise CheckpointError(
                f"no checkpoint can be written to {self.folder}: {first_line(error)}"
            ) from error

    def wait(self) -> None:
        """Wait until everything saved is on disk."""
        if self._manager is None:
            return
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            raise CheckpointError(
                f"no checkpoint can be written to {self.folder}: {first_line(error)}"
            ) from error

    def metadata(self, update: int) -> dict[str, Any]:
        """Return the metadata that was saved with a checkpoint."""
        return self._description(update)[METADATA]

    def restore(
        self, update: int, like: PyTree, *, partial: bool = False
    ) -> tuple[PyTree, dict[str, Any]]:
        """Return the tree and the metadata of a checkpoint.

        Args:
            update: One of `updates()`.
            like: A tree of arrays or of their shapes, with the structure of the saved tree.
            partial: Restore only some entries: those of the dictionary `like`.
        """
        description = self._description(update)
        saved = description["leaves"]
        names = tuple(f"[{name!r}]" for name in like) if partial else ("",)
        wanted = [row["name"].startswith(names) and row["name"] not in _OBSOLETE for row in saved]
        chosen = [row for row, want in zip(saved, wanted, strict=True) if want]
        self._check_structure(update, chosen, like)
        read = self._leaves(update, description)
        leaves = [leaf for leaf, want in zip(read, wanted, strict=True) if want]
        templates, structure = jax.tree.flatten(like)
        values = [_from_host(*each) for each in zip(leaves, templates, chosen, strict=True)]
        return jax.tree.unflatten(structure, values), description[METADATA]

    def verify(self, update: int) -> None:
        """Read a checkpoint back, and check it.

        Raises:
            CheckpointError: The checkpoint is missing or damaged.
        """
        self.wait()
        if self._manager is None:  # only the first process has the folder
            return
        if update not in self._found():
            raise CheckpointError(f"{self.folder / str(update)} is missing after it was written.")
        description = self._checked(update, self._recorded(update))
        self._compare(update, description, self._read(update, self._empty(update, description)))

    def _leaves(self, update: int, description: dict[str, Any]) -> list[np.ndarray]:
        empty = self._empty(update, description)
        leaves = multihost.arrays_from_primary(self._read(update, empty))
        self._compare(update, description, leaves)
        return leaves

    def _empty(self, update: int, description: dict[str, Any]) -> list[np.ndarray]:
        """Allocate arrays to read into, with the shapes in the description."""
        try:
            return [
                np.empty(leaf["stored_shape"], jnp.dtype(leaf["stored"]))
                for leaf in description["leaves"]
            ]
        except (MemoryError, ValueError) as error:
            raise self._damaged(update, first_line(error)) from error

    def _compare(self, update: int, description: dict[str, Any], leaves: list[np.ndarray]) -> None:
        for leaf, expected in zip(leaves, description["leaves"], strict=True):
            if _checksum(leaf) != expected["crc32"]:
                raise self._damaged(update, f"the checksum of {expected['name']} is wrong")

    def _found(self) -> list[int]:
        """List the updates of complete checkpoints on disk, if this process reads it."""
        if self._manager is None or not self.folder.exists():
            return []
        try:
            return sorted(self._manager.all_steps(read=True))
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{self.folder} cannot be read: {first_line(error)}") from error

    def _read(self, update: int, empty: list[np.ndarray]) -> list[np.ndarray]:
        """Read the arrays from disk; return `empty` if this process does not read the disk."""
        if self._manager is None:
            return empty
        args = self._ocp.args
        shapes = {str(i): leaf for i, leaf in enumerate(empty) if leaf.size}
        usual = sys.unraisablehook
        if not hasattr(usual, "ignores_closed_loops"):
            sys.unraisablehook = _ignore_closed_loops(usual)
        try:
            restored = self._manager.restore(
                update, args=args.Composite(arrays=args.StandardRestore(shapes))
            )
        except Exception as error:
            # The hook stays: orbax's abandoned readers report errors for a while.
            logging.getLogger("asyncio").addFilter(_is_no_leftover)
            raise self._damaged(update, first_line(error)) from error
        sys.unraisablehook = usual
        return [np.asarray(restored["arrays"].get(str(i), x)) for i, x in enumerate(empty)]

    def _description(self, update: int) -> dict[str, Any]:
        """Return the description of a checkpoint, in every process."""
        recorded = self._recorded(update) if self._manager is not None else None
        return self._checked(update, multihost.from_primary(recorded))

    def _recorded(self, update: int) -> Any:
        args = self._ocp.args
        assert self._manager is not None
        try:
            composite = args.Composite(**{METADATA: args.JsonRestore()})
            return self._manager.restore(update, args=composite)[METADATA]
        except Exception as error:
            raise self._damaged(update, first_line(error)) from error

    def _checked(self, update: int, description: Any) -> dict[str, Any]:
        if not isinstance(description, dict) or description.get("format") != FORMAT:
            raise CheckpointError(
                f"{self.folder / str(update)} was not written by nres, or by a version with "
                "another format."
            )
        try:
            metadata, leaves = description[METADATA], description["leaves"]
            for row in leaves:
                # Raises an error unless these are a shape and a dtype.
                np.empty((0, *row["stored_shape"]), jnp.dtype(row["stored"]))
                (row["name"], row["crc32"], row["shape"], row["dtype"])
            whole = isinstance(metadata, dict) and metadata.get("update", update) == update
        except (LookupError, TypeError, ValueError, AttributeError):
            whole = False
        # Checkpoints of earlier versions have no checksum.
        if (
            not whole
            or description.get("crc32", checksum := _metadata_checksum(metadata)) != checksum
        ):
            raise self._damaged(update, "its description has changed since it was written")
        return description

    def _check_structure(self, update: int, saved: list[dict], like: PyTree) -> None:
        expected = _describe(like)
        for old, new in zip(saved, expected, strict=False):
            for what in ("name", "shape", "dtype"):
                if old[what] != new[what]:
                    raise CheckpointError(
                        f"the checkpoint of update {update} does not fit: it has "
                        f"{old['name']} with {old['dtype']}{old['shape']}, and now "
                        f"{new['name']} with {new['dtype']}{new['shape']} is expected. The system, "
                        "theta, the method or the optimizer has changed since."
                    )
        if len(saved) != len(expected):
            raise CheckpointError(
                f"the checkpoint of update {update} does not fit: it holds {len(saved)} arrays, "
                f"{len(expected)} are expected."
            )

    def _damaged(self, update: int, reason: str) -> CheckpointError:
        others = [str(other) for other in self._found() if other < update]
        advice = (
            f"Delete that folder to resume from update {others[-1]}."
            if others
            else "There is no earlier checkpoint."
        )
        # Messages of orbax may be pages long.
        short = reason if len(reason) <= 160 else reason[:160].rpartition(" ")[0] + " ..."
        return CheckpointError(f"{self.folder / str(update)} is damaged: {short}. {advice}")


def _is_no_leftover(record: logging.LogRecord) -> bool:
    """Return whether a message of asyncio is not about an abandoned reader."""
    return "never retrieved" not in record.getMessage()


def _ignore_closed_loops(usual: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make a hook that drops errors of orbax's abandoned readers."""

    def hook(unraisable: Any) -> None:
        if "Event loop is closed" not in str(unraisable.exc_value):
            usual(unraisable)

    hook.ignores_closed_loops = True  # type: ignore[attr-defined]
    return hook


def is_key(leaf: Any) -> bool:
    """Return whether a leaf of a tree is an array of random keys."""
    return eqx.is_array(leaf) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _to_host(leaf: Any) -> np.ndarray:
    """Copy a leaf: the next update may reuse the memory of the original."""
    data = jax.random.key_data(leaf) if is_key(leaf) else leaf
    return np.array(multihost.gathered(data))


def _from_host(value: np.ndarray, like: Any, saved: dict[str, Any]) -> Any:
    if isinstance(like, np.ndarray):
        return value
    array = jnp.asarray(value)
    return jax.random.wrap_key_data(array, impl=saved["key"]) if "key" in saved else array


def _metadata_checksum(metadata: Any) -> int:
    return zlib.crc32(json.dumps(metadata, sort_keys=True).encode())


def _checksum(leaf: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(leaf).tobytes())


def _describe(tree: PyTree, leaves: list[np.ndarray] | None = None) -> list[dict[str, Any]]:
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    result = []
    for i, (path, leaf) in enumerate(paths):
        shaped = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
        row: dict[str, Any] = {
            "name": jax.tree_util.keystr(path) or "theta",
            "shape": list(shaped.shape),
            "dtype": str(shaped.dtype),
        }
        if leaves is not None:
            row |= {"stored": str(leaves[i].dtype), "stored_shape": list(leaves[i].shape)}
            row["crc32"] = _checksum(leaves[i])
            if is_key(leaf):
                row["key"] = str(jax.random.key_impl(leaf))
        result.append(row)
    return result
