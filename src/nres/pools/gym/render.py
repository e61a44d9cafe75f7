"""Films of episodes in gymnasium environments."""

from typing import Any

import jax
import numpy as np

from nres.acting import Actor
from nres.checks import check_frames
from nres.errors import first_line
from nres.pools.base import Film, PoolError
from nres.pools.gym.lanes import Lane
from nres.pools.simulator import act

# Frames per second of simulated time, if an environment does not tell.
USUAL_RATE = 30


def film_episode(
    make: tuple[Any, dict[str, Any]],
    clip: bool,
    actor: Actor,
    theta: Any,
    seed: int,
    *,
    steps: int,
    every: int,
    size: tuple[int, int],
) -> Film:
    """Draw one unperturbed episode of an environment with `render_mode="rgb_array"`.

    Args:
        make: The id or the maker of the environment, and its options.
        clip: True to clip actions.
        actor: The policy.
        theta: The parameters of the policy.
        seed: The seed of the episode.
        steps: The maximal number of steps to show.
        every: The number of steps between two frames.
        size: The width and the height of a frame, in pixels.

    Raises:
        PoolError: If the environment cannot be drawn.
    """
    from PIL import Image

    frames: list[np.ndarray] = []
    check_frames(-(-steps // every), size)
    env, options = make
    try:
        lane = Lane((env, {**options, "render_mode": "rgb_array"}), clip)
    except (TypeError, ValueError) as error:
        raise PoolError(f"the environment takes no render_mode: {first_line(error)}") from error
    thetas = jax.tree.map(lambda x: np.asarray(x, np.float64)[None], theta)
    try:
        observation = lane.reset(seed % 2**32)[None]
        acting = actor.begin(thetas, observation)
        for t in range(steps):
            if t % every == 0:
                image = Image.fromarray(_drawn(lane.env))
                frames.append(np.asarray(image.resize(size)))
            action = act(actor, thetas, acting, observation, slice(None))
            observation, ended = _stepped(lane, action[0], t)
            if ended:
                break
    finally:
        lane.env.close()
    rate = lane.env.metadata.get("render_fps", USUAL_RATE)
    return Film(frames, every / rate)


def _stepped(lane: Lane, action: np.ndarray, t: int) -> tuple[np.ndarray, bool]:
    try:
        row, _, ended = lane.step(action)
    except Exception as error:  # the type depends on the environment
        name = type(lane.env.unwrapped).__name__
        raise PoolError(f"{name} failed in step {t}: {first_line(error)}") from error
    return row[None], ended


def _drawn(env: Any) -> np.ndarray:
    name = type(env.unwrapped).__name__
    try:
        frame = env.render()
    except Exception as error:  # the type depends on what is missing
        raise PoolError(f"{name} cannot be drawn: {first_line(error)}") from error
    if not isinstance(frame, np.ndarray):
        raise PoolError(f"{name} draws no picture with render_mode='rgb_array'.")
    return frame
