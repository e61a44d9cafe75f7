"""The paper's algorithms and closed forms in plain NumPy, to test estimators against.

Nothing here uses the estimators: noise is handed in as a function of (episode, index), the keys
of the systems' own randomness as a function of the episode. Where the paper is silent (a last
window that is shorter, members that end early, a schedule of sigma) this follows the rules the
library states: weigh a window by (number of windows) / T, absorb a member that ended, weigh every
noise by the sigma that scaled it.
"""

import numpy as np


class Trajectory:
    """One unroll, by the absorbing rule. `simulator.step` returns (state, loss, ended)."""

    def __init__(self, simulator, theta, key):
        self.simulator, self.key = simulator, key
        self.state = simulator.init(theta, key)
        self.t, self.ended = 0, False

    def copy(self):
        other = object.__new__(Trajectory)
        other.__dict__.update(self.__dict__)
        return other

    def run(self, theta, steps):
        """Return the summed loss of the next steps and the number of steps taken."""
        total, taken = 0.0, 0
        for _ in range(steps):
            if self.ended:
                total += self.simulator.absorbing_loss
            else:
                self.state, loss, self.ended = self.simulator.step(
                    self.state, theta, self.t, self.key
                )
                total, taken = total + loss, taken + 1
            self.t += 1
        return total, taken


class Worker:
    """The pseudocode of GPES, TES and FullES, which differ in `period` and `restarts`."""

    def __init__(self, simulator, noise, episode_key, horizon, window, period, restarts):
        self.simulator, self.noise, self.episode_key = simulator, noise, episode_key
        self.T, self.W, self.K, self.restarts = horizon, window, period, restarts
        self.tau, self.episode = 0, 0

    def estimate(self, theta, sigma):
        T, W, K = self.T, self.W, self.K
        if self.tau == 0:
            self.score = np.zeros_like(theta)
        if self.tau % K == 0:
            self.sigma = sigma
            self.epsilon = sigma * self.noise(self.episode, self.tau // K)
            self.score = self.score + self.epsilon / sigma**2
        plus, minus = theta + self.epsilon, theta - self.epsilon
        if self.tau == 0:
            key = self.episode_key(self.episode)
            self.plus, self.minus, self.mean = (
                Trajectory(self.simulator, parameters, key) for parameters in (plus, minus, theta)
            )
        elif self.restarts:
            self.plus, self.minus = self.mean.copy(), self.mean.copy()

        length = min(W, T - self.tau)
        loss_plus, steps_plus = self.plus.run(plus, length)
        loss_minus, steps_minus = self.minus.run(minus, length)
        steps = steps_plus + steps_minus
        if self.restarts:
            steps += self.mean.run(theta, length)[1]
        weight = self.epsilon / self.sigma**2 if self.restarts else self.score
        windows = -(-T // W)
        gradient = (loss_plus - loss_minus) * windows / (2 * T) * weight
        loss = (loss_plus + loss_minus) / 2 * windows / T

        self.tau += length
        if self.tau == T:
            self.tau, self.episode = 0, self.episode + 1
        return gradient, loss, steps


def run(theta, workers, offsets, updates, sigma):
    """The training loop at a fixed theta; `sigma` is a function of the update."""
    unlock = 0
    for worker, offset in zip(workers, offsets, strict=True):
        for _ in range(offset):
            unlock += worker.estimate(theta, sigma(0))[2]
    results = []
    for update in range(updates):
        parts = [worker.estimate(theta, sigma(update)) for worker in workers]
        gradients, losses, steps = zip(*parts, strict=True)
        results.append((np.mean(gradients, axis=0), np.mean(losses), sum(steps)))
    return unlock, results


def theorem(system, theta, period, window):
    """Evaluate the variance of Theorem 4, term by term, with windows as the steps.

    A shorter last window enters with the sum of its losses, not with their mean.
    """
    gradients = np.asarray(system.application_gradients(theta), np.float64)
    horizon, d = system.horizon, theta.size
    starts = np.arange(0, horizon, window)
    n = len(starts)
    third, first, total = 0.0, 0.0, np.zeros(d)
    for start in starts:
        of_window = gradients[start : start + window].sum(axis=0) * n / horizon
        count = start // period + 1
        parts = [of_window[period * j : period * (j + 1)].sum(axis=0) for j in range(count)]
        whole = np.sum(parts, axis=0)
        first += whole @ whole
        total += whole
        third += d / 2 * sum(np.sum((a - b) ** 2) for a in parts for b in parts)
    return (d + 2) / n * first - np.sum((total / n) ** 2) + third / n


def truncated_gradient(system, theta, window):
    """Compute the mean of TBPTT, which sees the applications of theta within the window only."""
    g = np.asarray(system.application_gradients(theta))
    total = np.zeros(theta.shape)
    for t in range(system.horizon):
        total += g[t, t - t % window : t + 1].sum(axis=0)
    return total / system.horizon


def cliff_loss(first, second):
    """Compute the mean loss if the first two steps use one parameter, the last two another."""
    total, state = np.zeros(np.broadcast_shapes(first.shape, second.shape)), 0.0
    ended = np.zeros(total.shape, bool)
    for theta in (first, first, second, second):
        state = np.where(ended, state, state + theta)
        total = total + np.where(ended, 1.5, (state - 1.0) ** 2)
        ended = ended | (state > 1.2)
    return total / 4


def cliff_gradient(theta, sigma, shared):
    """Compute the exact gradient of the smoothed loss by integration on a fine grid."""
    e = np.linspace(-6, 6, 4001) * sigma
    p = np.exp(-(e**2) / (2 * sigma**2))
    p = p / p.sum()
    if shared:
        return (p * cliff_loss(theta + e, theta + e) * e).sum() / sigma**2
    loss = cliff_loss(theta + e[:, None], theta + e[None, :])
    return np.einsum("i,j,ij,ij->", p, p, loss, e[:, None] + e[None, :]) / sigma**2
