"""JAX's persistent compilation cache: later processes load compiled code from disk."""

from pathlib import Path

import jax


def cache_compilations(folder: str | Path | None = None) -> Path:
    """Store compiled code in a folder, so that later processes need not compile it again.

    The cache changes compilation times, not results. Setting the environment variable
    `JAX_COMPILATION_CACHE_DIR` has the same effect. Use a separate folder for each kind of
    machine: code compiled for one processor may not run on another.

    Args:
        folder: The folder, created if needed. By default, a folder in the user's cache directory.

    Returns:
        The absolute path of the folder.

    Example:
        ```python
        nres.cache_compilations()      # before the first computation
        ```
    """
    if folder is None:
        import platformdirs

        folder = platformdirs.user_cache_path("nres", appauthor=False) / "compiled"
    folder = Path(folder).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # JAX's default is one second, but many programs here compile faster, and they add up.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    return folder
