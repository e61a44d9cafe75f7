"""JAX's persistent compilation cache: what was compiled once is loaded from the disk."""

from pathlib import Path

import jax


def cache_compilations(folder: str | Path | None = None) -> Path:
    """Keep compiled code in a folder, so that later processes need not compile it again.

    Results do not depend on it. The same can be had with the environment variable
    `JAX_COMPILATION_CACHE_DIR`. Use one folder for each kind of machine: code that was compiled
    for one processor need not run on another.

    ```python
    nres.cache_compilations()      # before the first computation
    ```

    **Arguments:**

    - `folder`: the folder; by default one in the user's cache.

    **Returns:** the folder.
    """
    if folder is None:
        import platformdirs

        folder = platformdirs.user_cache_path("nres", appauthor=False) / "compiled"
    folder = Path(folder).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # By default JAX keeps only what takes a second; small programs add up.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    return folder
