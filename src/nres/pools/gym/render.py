"""Films of episodes in gymnasium environments."""

from typing import Any

import jax
import numpy as np

from nres.acting import Actor
from nres.checks import check_memory, host_memory
from nres.pools.base import Film
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
        ImportError: If a package is missing that the environment needs to draw itself.
        ValueError: If the environment cannot be drawn.
    """
    from PIL import Image

    width, height = size
    frames: list[np.ndarray] = []
    count = -(-steps // every)
    what = f"{count:,} frames of {width} x {height} pixels"
    check_memory(3 * count * width * height, what, there=host_memory())
    env, options = make
    lane = Lane((env, {**options, "render_mode": "rgb_array"}), clip)
    thetas = jax.tree.map(lambda x: np.asarray(x, np.float64)[None], theta)
    try:
        observation = lane.reset(seed)[None]
        acting = actor.begin(thetas, observation)
        for t in range(steps):
            if t % every == 0:
                image = Image.fromarray(_drawn(lane.env))
                frames.append(np.asarray(image.resize((width, height))))
            action = act(actor, thetas, acting, observation, slice(None))
            row, _, ended = lane.step(action[0])
            observation = row[None]
            if ended:
                break
    finally:
        lane.env.close()
    rate = lane.env.metadata.get("render_fps", USUAL_RATE)
    return Film(frames, every / rate)


def _drawn(env: Any) -> np.ndarray:
    import gymnasium

    try:
        frame = env.render()
    except gymnasium.error.DependencyNotInstalled as error:
        raise ImportError(f"the environment cannot be drawn: {error}") from error
    if not isinstance(frame, np.ndarray):
        raise ValueError(
            f"{type(env.unwrapped).__name__} draws no picture with render_mode='rgb_array'."
        )
    return frame
