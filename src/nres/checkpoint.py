"""Checkpoints: any pytree of arrays, saved in the background, whole or not at all.

Arrays are written by orbax, without pickle, into a folder of their own for each update; what is
not complete does not count. Beside them lies what they are (name, shape, dtype, checksum), so that
a damaged or foreign checkpoint is told from a good one before anything is continued from it.
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
# Arrays in checkpoints of earlier versions that nothing needs any more.
_OBSOLETE = {"['estimator'].unlocked_total", "['estimator'].unlocked_sequential"}
# The name that the metadata has on the disk, in checkpoints of all versions.
METADATA = "facts"
# What the library that writes checkpoints takes for a pattern, or for another separator.
_UNUSABLE = frozenset("[]" if os.sep == "\\" else "[]\\")


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written, read or continued from."""


class Checkpoints:
    """The checkpoints of one run: the newest few are kept, and some on the way if asked for.

    ```python
    with nres.checkpoint.Checkpoints("checkpoints") as checkpoints:
        checkpoints.save(100, {"theta": theta}, {"seconds": 1.5})
        checkpoints.wait()
        tree, metadata = checkpoints.restore(100, like={"theta": theta})
    ```

    **Arguments:**

    - `folder`: where they are, or will be.
    - `keep`: how many are kept.
    - `keep_every`: besides them, those of all multiples of so many updates.
    - `write`: whether to write, which must only be one process at a time. It removes what a
        killed process left half-written; a reader touches nothing.

    If several processes compute a run together, each of them makes every call. The first reads and
    writes the folder, which the others need not have.
    """

    def __init__(
        self,
        folder: str | Path,
        keep: int = 3,
        keep_every: int | None = None,
        write: bool = True,
    ):
        # Takes more than a second to import, which only those who save should wait for.
        import orbax.checkpoint as ocp

        logging.getLogger("absl").setLevel(logging.ERROR)  # every save would be reported there
        if Path(folder).is_symlink():
            raise CheckpointError(f"{folder} is a link, which nres does not follow.")
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
        if multihost.is_multihost():  # orbax would wait for the others
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
        """Refuse devices, pipes and links among the files: reading one could hang, or never end."""
        for parent, folders, files in os.walk(self.folder):
            for name in (*folders, *files):
                path = os.path.join(parent, name)
                try:
                    mode = os.lstat(path).st_mode
                except FileNotFoundError:  # a checkpoint that is replaced meanwhile
                    continue
                if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                    raise OSError(errno.EINVAL, "it is not a plain file", path)

    @staticmethod
    def check_folder(folder: Path) -> None:
        """Refuse a folder from which checkpoints could not be read back."""
        if found := _UNUSABLE.intersection(str(folder.resolve())):
            raise CheckpointError(
                f"checkpoints cannot be kept in {folder}: the library that writes them does not "
                f"find files below a folder with {' or '.join(sorted(found))} in its name. "
                "Choose another folder."
            )

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type | None, *exception: object) -> None:
        try:
            if self._manager is not None:
                self._manager.close()
        except Exception:
            if kind is None:  # else what happened first is what matters
                raise

    def updates(self) -> list[int]:
        """The updates of which there is a complete checkpoint."""
        return multihost.from_primary(self._found())

    def save(self, update: int, tree: PyTree, metadata: dict[str, Any]) -> None:
        """Copy the arrays and the metadata, which is JSON, and write them in the background."""
        leaves = [_to_host(leaf) for leaf in jax.tree.leaves(tree)]
        if self._manager is None:
            return
        # A copy, too: the caller may go on changing what is written only later.
        metadata = json.loads(json.dumps(metadata))
        description = {
            "format": FORMAT,
            "leaves": _describe(tree, leaves),
            METADATA: metadata,
            "crc32": _metadata_checksum(metadata),
        }
        args = self._ocp.args
        parts = {
            # Orbax does not save arrays without elements; their shapes are described.
            "arrays": args.StandardSave({str(i): x for i, x in enumerate(leaves) if x.size}),
            METADATA: args.JsonSave(description),
        }
        try:
            self._manager.save(update, args=args.Composite(**parts))
        except Exception as error:
            raise CheckpointError(f"no checkpoint can be written: {first_line(error)}") from error

    def wait(self) -> None:
        """Until what was saved is on the disk."""
        if self._manager is None:
            return
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            raise CheckpointError(f"no checkpoint can be written: {first_line(error)}") from error

    def metadata(self, update: int) -> dict[str, Any]:
        """Return the metadata that was saved with a checkpoint."""
        return self._description(update)[METADATA]

    def restore(
        self, update: int, like: PyTree, *, partial: bool = False
    ) -> tuple[PyTree, dict[str, Any]]:
        """Return a checkpoint's tree and metadata.

        **Arguments:**

        - `update`: one of `updates()`.
        - `like`: a tree of arrays, or of their shapes, as it was when saved.
        - `partial`: whether `like` is a dictionary with only some of the saved entries.
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
        """Read a checkpoint back; a `CheckpointError` says what is wrong with it."""
        self.wait()
        if self._manager is None:  # the first process has the folder
            return
        if update not in self._found():
            raise CheckpointError(f"{self.folder / str(update)} is not there after it was written.")
        description = self._checked(update, self._recorded(update))
        self._compare(update, description, self._read(update, self._empty(update, description)))

    def _leaves(self, update: int, description: dict[str, Any]) -> list[np.ndarray]:
        empty = self._empty(update, description)
        leaves = multihost.arrays_from_primary(self._read(update, empty))
        self._compare(update, description, leaves)
        return leaves

    def _empty(self, update: int, description: dict[str, Any]) -> list[np.ndarray]:
        """Arrays to read into. The checkpoint itself says of which shapes; it is checked later."""
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
        """The updates of complete checkpoints, by processes that read the disk."""
        if self._manager is None or not self.folder.exists():
            return []
        try:
            return sorted(self._manager.all_steps(read=True))
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{self.folder} cannot be read: {first_line(error)}") from error

    def _read(self, update: int, empty: list[np.ndarray]) -> list[np.ndarray]:
        """Arrays from the disk, by processes that read it; the others get back what they give."""
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
            # The hook stays: readers that were given up on go on complaining for a while.
            logging.getLogger("asyncio").addFilter(_is_no_leftover)
            raise self._damaged(update, first_line(error)) from error
        sys.unraisablehook = usual
        return [np.asarray(restored["arrays"].get(str(i), x)) for i, x in enumerate(empty)]

    def _description(self, update: int) -> dict[str, Any]:
        """The description of a checkpoint, for every process."""
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
                f"{self.folder / str(update)} was not written by nres, or by a version of it with "
                "another format."
            )
        try:
            metadata, leaves = description[METADATA], description["leaves"]
            for row in leaves:
                # What is not a shape and a dtype fails here.
                np.empty((0, *row["stored_shape"]), jnp.dtype(row["stored"]))
                (row["name"], row["crc32"], row["shape"], row["dtype"])
            whole = isinstance(metadata, dict) and metadata.get("update", update) == update
        except (LookupError, TypeError, ValueError, AttributeError):
            whole = False
        # Checkpoints of earlier versions have no such sum.
        if (
            not whole
            or description.get("crc32", checksum := _metadata_checksum(metadata)) != checksum
        ):
            raise self._damaged(update, "its description is not what was written")
        return description

    def _check_structure(self, update: int, saved: list[dict], like: PyTree) -> None:
        expected = _describe(like)
        for old, new in zip(saved, expected, strict=False):
            for what in ("name", "shape", "dtype"):
                if old[what] != new[what]:
                    raise CheckpointError(
                        f"the checkpoint of update {update} does not fit: "
                        f"{old['name']} is {old['dtype']}{old['shape']} there, and "
                        f"{new['name']} is {new['dtype']}{new['shape']} now. The system, theta, "
                        "the method or the optimizer has changed since."
                    )
        if len(saved) != len(expected):
            raise CheckpointError(
                f"the checkpoint of update {update} does not fit: it holds {len(saved)} arrays, "
                f"{len(expected)} are expected."
            )

    def _damaged(self, update: int, reason: str) -> CheckpointError:
        others = [str(other) for other in self._found() if other < update]
        advice = (
            f"Delete that folder to go on from update {others[-1]}."
            if others
            else "There is no earlier one."
        )
        # Reports of the library that reads checkpoints go on for pages.
        short = reason if len(reason) <= 160 else reason[:160].rpartition(" ")[0] + " ..."
        return CheckpointError(f"{self.folder / str(update)} is damaged: {short}. {advice}")


def _is_no_leftover(record: logging.LogRecord) -> bool:
    """Tell if a message of asyncio is not about a reader that was given up on."""
    return "never retrieved" not in record.getMessage()


def _ignore_closed_loops(usual: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A hook that drops the complaints of orbax's readers about a damaged checkpoint."""

    def hook(unraisable: Any) -> None:
        if "Event loop is closed" not in str(unraisable.exc_value):
            usual(unraisable)

    hook.ignores_closed_loops = True  # type: ignore[attr-defined]
    return hook


def is_key(leaf: Any) -> bool:
    """Whether a leaf of a tree is an array of random keys."""
    return eqx.is_array(leaf) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _to_host(leaf: Any) -> np.ndarray:
    """A copy: the memory of the original may be reused by the next update."""
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
