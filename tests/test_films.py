"""Films of policies: videos that are read back, sizes, and what is refused."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import flax.struct
import imageio_ffmpeg
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import nres
from environments import CliffEnv
from helpers import create_run, invoke, raises_naming
from nres.pools import GymPool, PoolError
from nres.pools.mujoco.render import film_episode, save

# Frames of one colour each, of 50 x 34 pixels, which is no multiple of 16.
COLOURS = np.array([[200, 30, 30], [30, 180, 30], [40, 40, 210], [230, 230, 230]], np.uint8)
FRAMES = [np.broadcast_to(colour, (34, 50, 3)) for colour in COLOURS]


@pytest.mark.parametrize("name", ["film.mp4", "swim:1.mp4", "-d/film.mp4"])
def test_a_video_is_read_back_frame_by_frame(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    save(FRAMES, Path(name), 0.25)
    file = tmp_path / name
    assert list(file.parent.iterdir()) == [file]
    decode = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", file, "-f", "rawvideo", "-pix_fmt", "rgb24"]
    raw = subprocess.run([*decode, "-"], capture_output=True, check=True).stdout
    read = np.frombuffer(raw, np.uint8).reshape(-1, 34, 50, 3)
    assert len(read) == 4
    # The encoding is lossy.
    np.testing.assert_allclose(read.mean(axis=(1, 2)), COLOURS, atol=6)
    assert imageio_ffmpeg.count_frames_and_secs(str(file)) == (4, 1.0)


def test_an_animation_and_a_strip_are_read_back(tmp_path):
    save(FRAMES, tmp_path / "film.gif", 0.25)
    with Image.open(tmp_path / "film.gif") as film:
        assert (film.n_frames, film.size, film.info["duration"]) == (4, (50, 34), 250)
    save(FRAMES, tmp_path / "film.png", 0.25)
    with Image.open(tmp_path / "film.png") as strip:
        np.testing.assert_array_equal(np.asarray(strip), np.concatenate(FRAMES, axis=1))


def test_a_video_that_cannot_be_written_is_reported(tmp_path):
    with raises_naming(OSError, tmp_path / "film.mp4"):
        save([frame[:33] for frame in FRAMES], tmp_path / "film.mp4", 0.25)  # an odd height
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        (["--size", "64"], "'64'"),
        (["--size", "64x0"], "'64x0'"),
        (["--size", "99999x64"], "'99999x64'"),
        (["--size", "6.5x64"], "'6.5x64'"),
        (["--size", "65x64", "--out", "x.mp4"], "65x64"),
        (["--out", "x.avi"], "x.avi"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, culprit):
    run = create_run(tmp_path / "run")
    refused = invoke("render", run.path, *options)
    assert refused.exit_code == 2
    assert culprit in refused.stderr


def test_a_film_that_does_not_fit_into_memory_is_refused():
    pytest.importorskip("mujoco")
    pool = SimpleNamespace(test_horizon=10**9)  # nothing else is needed before the first frame
    with raises_naming(MemoryError, "250,000,000 frames", "8000 x 6000"):
        film_episode(pool, None, 0, steps=10**9, every=4, size=(8000, 6000))


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    refused = invoke("render", create_run(tmp_path / "run").path, "--out", "x.mp4")
    assert refused.exit_code == 1
    assert "nres[video]" in refused.stderr


def test_an_animation_is_not_faster_than_browsers_show(tmp_path):
    save(FRAMES, tmp_path / "film.gif", 0.008)
    with Image.open(tmp_path / "film.gif") as film:
        assert film.info["duration"] == 20


class Painter(CliffEnv):
    """An environment whose picture is as bright as it is far, and whose episodes end."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def render(self):
        return np.full((12, 16, 3), int(100 * self.x), np.uint8)


def test_an_environment_of_gymnasium_is_filmed_until_it_ends():
    pool = GymPool(Painter, horizon=1, test_horizon=20)
    film = pool.film(np.full((1, 1), 0.5), -1, steps=20, every=1, size=(8, 6))
    assert film.seconds == 0.05
    assert [frame.shape for frame in film.frames] == [(6, 8, 3)] * 3
    assert [frame.max() for frame in film.frames] == [0, 50, 100]
    with raises_naming(PoolError, "render_mode"):
        GymPool(CliffEnv, horizon=20).film(np.full((1, 1), 0.5), 0, steps=20, every=1)
    with raises_naming(PoolError, "Blank", "rgb_array"):
        GymPool(Blank, horizon=20).film(np.full((1, 1), 0.5), 0, steps=20, every=1)
    with raises_naming(PoolError, "Broken", "step 0", "out of order"):
        GymPool(Broken, horizon=20).film(np.full((1, 1), 0.5), 0, steps=20, every=1)


class Broken(Painter):
    def step(self, action):
        raise RuntimeError("out of order")


class Blank(CliffEnv):
    def __init__(self, render_mode=None):
        pass

    def render(self):
        return None


@flax.struct.dataclass
class Moving:
    obs: jax.Array
    reward: jax.Array
    done: jax.Array


class Robot:
    """An environment with Brax's interface that moves by its action, until it has moved by 2."""

    action_size, dt = 1, 0.1
    mj_model = SimpleNamespace(ncam=0)

    def reset(self, key):
        return Moving(jnp.ones(1), jnp.zeros(()), jnp.zeros(()))

    def step(self, state, action):
        moved = state.obs + action
        return Moving(moved, moved[0], (moved[0] > 2.9).astype(float))

    def render(self, trajectory, height, width, camera):
        shades = [int(10 * state.obs[0]) for state in trajectory]
        return [np.full((height, width, 3), shade, np.uint8) for shade in shades]


def test_an_environment_in_jax_is_filmed_until_it_ends():
    pool = nres.JaxPool(nres.systems.BraxEnvironment(Robot(), horizon=1, test_horizon=9))
    film = pool.film(jnp.full((1, 1), 0.5), 0, steps=9, every=1, size=(8, 6))
    assert film.seconds == 0.1
    assert [frame.shape for frame in film.frames] == [(6, 8, 3)] * 3
    # Positions grow by half of themselves, and by at most 1.
    assert [int(frame.max()) for frame in film.frames] == [10, 15, 22]
    assert nres.JaxPool(nres.systems.Lorenz()).film is None
