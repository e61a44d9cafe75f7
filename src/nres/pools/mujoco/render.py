"""Films of a policy in a MuJoCo task."""

import contextlib
import ctypes.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from nres.checks import check_frames
from nres.files import replacing
from nres.pools.mujoco.task import require_mujoco

HELP = (
    "MuJoCo cannot draw here. On Linux without a display it needs a rendering library: on Debian "
    "or Ubuntu, `apt install libosmesa6` and set MUJOCO_GL=osmesa, or, with a GPU, "
    "`apt install libegl1` and set MUJOCO_GL=egl."
)


def choose_backend() -> None:
    """Let MuJoCo draw off-screen with an installed library; call this before importing mujoco."""
    if sys.platform != "linux" or "MUJOCO_GL" in os.environ or "DISPLAY" in os.environ:
        return
    for name, library in (("egl", "EGL"), ("osmesa", "OSMesa")):
        if ctypes.util.find_library(library):
            os.environ["MUJOCO_GL"] = name
            return


def film_episode(
    pool: Any,
    theta: PyTree,
    seed: int,
    *,
    steps: int,
    every: int,
    size: tuple[int, int],
) -> list[np.ndarray]:
    """Draw one unperturbed episode as frames of red, green and blue bytes.

    Args:
        pool: The `nres.pools.MujocoPool` whose policy acts.
        theta: The parameters of the policy.
        seed: The seed of the initial state.
        steps: The maximal number of steps to show.
        every: The number of steps between two frames.
        size: The width and the height of a frame, in pixels.

    Raises:
        MemoryError: If the frames would need more memory than there is.
    """
    mujoco = require_mujoco()
    width, height = size
    times = range(0, min(steps, pool.test_horizon), every)
    check_frames(len(times), size)
    # The model limits the size of frames, to 640 x 480 by default.
    limits = pool.model.vis.global_
    limits.offwidth, limits.offheight = max(limits.offwidth, width), max(limits.offheight, height)
    try:
        renderer = mujoco.Renderer(pool.model, height, width)
    except Exception as error:  # the type depends on what is missing
        raise ImportError(f"{HELP} ({error})") from error
    camera = mujoco.MjvCamera()
    camera.type = mujoco.mjtCamera.mjCAMERA_TRACKING
    for name, value in pool.task.camera.items():
        setattr(camera, name, value)
    data = mujoco.MjData(pool.model)
    keys = np.array([[0, seed % 2**32]], np.uint32)
    thetas = jax.tree.map(lambda x: np.asarray(x)[None, None], theta)
    state: Any = pool.advance(None, thetas, keys, np.array([0]), 0).state
    frames = []
    for t in times:
        row = state["rows"][0, 0]
        mujoco.mj_setState(pool.model, data, row, mujoco.mjtState.mjSTATE_INTEGRATION)
        mujoco.mj_forward(pool.model, data)
        renderer.update_scene(data, camera)
        frames.append(renderer.render().copy())
        if state["ended"][0, 0]:
            break
        # From step 1 on, so that no new episode begins.
        state = pool.advance(state, thetas, keys, np.array([t + 1]), every).state
    renderer.close()
    return frames


def find_ffmpeg() -> str:
    """Return the path of the program that writes videos, or explain how to install it."""
    try:
        import imageio_ffmpeg

        return imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError) as error:  # the package, or the program, is missing
        raise ImportError(
            "writing .mp4 files needs ffmpeg: pip install 'nres[video]'. Files that end in .gif do "
            f"not need it. ({error})"
        ) from error


def save(frames: list[np.ndarray], path: Path, seconds: float) -> None:
    """Save a film: an animation (.gif), a video (.mp4) or a strip of up to eight frames (.png).

    Args:
        frames: Frames of red, green and blue bytes, all of the same size, which must be even for
            a video.
        path: The file to write, whose ending chooses the format.
        seconds: The time between two frames.
    """
    if path.suffix == ".mp4":
        _save_video(frames, path, seconds)
        return
    from PIL import Image

    if path.suffix == ".gif":
        milliseconds = max(20, round(1000 * seconds))  # browsers slow down what is faster
        images = [Image.fromarray(frame).quantize(64) for frame in frames]
        with replacing(path) as partial:
            images[0].save(
                partial, save_all=True, append_images=images[1:], duration=milliseconds, loop=0
            )
        return
    chosen = [frames[i] for i in np.linspace(0, len(frames) - 1, min(8, len(frames))).astype(int)]
    with replacing(path) as partial:
        Image.fromarray(np.concatenate(chosen, axis=1)).save(partial)


def _save_video(frames: list[np.ndarray], path: Path, seconds: float) -> None:
    """Save a video in the encoding that all browsers and players show: H.264 with YUV 4:2:0."""
    height, width, _ = frames[0].shape
    given = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]
    given += ["-r", f"{1 / seconds:.6f}", "-i", "-"]
    wanted = ["-c:v", "libx264", "-pix_fmt", "yuv420p"]
    with replacing(path) as partial, tempfile.TemporaryFile() as said:
        # ffmpeg takes a relative name with a colon for an address, and one with a dash for options.
        command = [find_ffmpeg(), "-loglevel", "error", *given, *wanted, str(partial.absolute())]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=said) as ffmpeg:
            assert ffmpeg.stdin is not None
            with contextlib.suppress(BrokenPipeError), ffmpeg.stdin:  # its status tells of an error
                for frame in frames:
                    ffmpeg.stdin.write(frame.tobytes())
        if ffmpeg.returncode:
            said.seek(0)
            words = " ".join(said.read().decode(errors="replace").split())
            raise OSError(f"ffmpeg cannot write {path}: {words}.")
