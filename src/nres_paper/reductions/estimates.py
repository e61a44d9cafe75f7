r"""Estimates of NRES with and without reductions of their variance, from recorded episodes.

An update averages N workers, which are evenly spread over the n windows: as many at each of them.
Every turn of the workers by a number of windows gives one update, so a group of episodes gives n of
them. Parameters and losses are in units of $\sigma$, in which noises are standard normal.

A control is a random vector of mean zero, which is computed from the noise of the same update and
from quantities that do not depend on it. Subtracting it with any coefficient leaves the mean of the
estimate unchanged.
"""

import numpy as np
from jaxtyping import Float

from nres_paper.reductions.episodes import Episodes

Updates = Float[np.ndarray, "groups turns d"]
Controls = Float[np.ndarray, "groups turns d controls"]


def odd(episodes: Episodes) -> Float[np.ndarray, "groups workers windows"]:
    """Return half the difference of the losses of each pair."""
    return (episodes.losses[:, 0] - episodes.losses[:, 1]) / 2


def gather(terms: Float[np.ndarray, "groups workers windows *rest"]) -> np.ndarray:
    """Average over the workers of each update, from what each would contribute in each window.

    Returns:
        An array with axes `(groups, turns)` in front: worker i is at window i·n/N + turn, modulo n.
    """
    groups, workers, windows = terms.shape[:3]
    each = workers // windows
    summed = terms.reshape(groups, windows, each, windows, *terms.shape[3:]).sum(axis=2)
    place = np.arange(windows)
    turned = [summed[:, place, (place + turn) % windows].sum(axis=1) for turn in place]
    return np.stack(turned, axis=1) / workers


def weighted(
    response: Float[np.ndarray, "groups workers windows"], noise: Float[np.ndarray, "g w d"]
) -> Updates:
    """Average the workers' responses times their noises."""
    return gather(response[..., None] * noise[:, :, None, :])


def plain(episodes: Episodes) -> Updates:
    """Return the estimates of NRES."""
    return weighted(odd(episodes), episodes.noise)


def window_gradients(episodes: Episodes) -> Float[np.ndarray, "windows d"]:
    """Estimate the gradient of the smoothed mean loss of each window."""
    workers = episodes.noise.shape[0] * episodes.noise.shape[1]
    return np.einsum("gwk,gwd->kd", odd(episodes), episodes.noise) / workers


def linear_controls(
    noise: Float[np.ndarray, "groups workers d"], guesses: Float[np.ndarray, "windows d"]
) -> Controls:
    r"""Return the controls $(\epsilon^\top h_k)\epsilon - h_k$, one for each window k.

    Args:
        noise: The noises.
        guesses: $h_k$, guesses of the gradients of the windows, independent of the noises.
    """
    windows = len(guesses)
    response = np.einsum("gwd,kd->gwk", noise, guesses)
    made = []
    for k in range(windows):
        only = np.zeros_like(response)
        only[..., k] = response[..., k]
        made.append(weighted(only, noise) - guesses[k] / windows)
    return np.stack(made, axis=-1)


def linear_control(
    noise: Float[np.ndarray, "groups workers d"], guess: Float[np.ndarray, " d"], windows: int
) -> Controls:
    r"""Return the control $(\epsilon^\top h)\epsilon - h$ with one guess h for all windows."""
    guesses = np.broadcast_to(guess, (windows, guess.size))
    return linear_controls(noise, guesses).sum(axis=-1, keepdims=True)


def potential_controls(
    episodes: Episodes, potentials: Float[np.ndarray, "g members w boundaries potentials"]
) -> Controls:
    r"""Return the controls of potentials: $V(s)$ at the end of a window minus $V(s)$ at its start.

    A potential counts as zero at the start and at the end of an episode. The sum over the windows
    of an episode therefore vanishes, whatever the potential.

    Args:
        episodes: The episodes.
        potentials: The values of the potentials between the windows.
    """
    half = (potentials[:, 0] - potentials[:, 1]) / 2
    change = np.diff(np.pad(half, [(0, 0), (0, 0), (1, 1), (0, 0)]), axis=2)
    made = [weighted(change[..., i], episodes.noise) for i in range(change.shape[-1])]
    return np.stack(made, axis=-1)


def fit(updates: Updates, controls: Controls, ridge: float = 1e-6) -> np.ndarray:
    """Return the coefficients of the controls that leave the least variance."""
    x = controls.reshape(-1, controls.shape[-1])
    y = (updates - updates.mean(axis=(0, 1))).reshape(-1)
    gram = x.T @ x
    scale = np.trace(gram) / len(gram) if gram.any() else 1.0
    return np.linalg.solve(gram + ridge * scale * np.eye(len(gram)), x.T @ y)


def one_sided(episodes: Episodes) -> Updates:
    """Return estimates of twice as many single members, with leave-one-out baselines.

    Two groups give the members of one update, which takes as many steps as N pairs. The baseline of
    a member is the mean loss of the other members in the same window.
    """
    groups, workers, d = episodes.noise.shape
    windows = episodes.losses.shape[-1]
    half, each = groups // 2, workers // windows
    # Members at the same window are those of the same stretch of workers, in both groups.
    shape = (half, 2, windows, each)
    loss = episodes.losses[: 2 * half, 0].reshape(*shape, windows)
    others = loss.sum(axis=(1, 3), keepdims=True) - loss
    response = loss - others / (2 * each - 1)
    noise = episodes.noise[: 2 * half]
    terms = weighted(response.reshape(2 * half, workers, windows), noise)
    return terms.reshape(half, 2, windows, d).mean(axis=1)
