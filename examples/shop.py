"""Tune the stock of a shop, a simulator in NumPy whose cost has jumps and no useful derivative.

Every day brings random demand. When the stock of a good, with what is on its way, falls to the
reorder level, the shop orders a batch, which comes five days later. Stock, orders and lost sales
cost money. Pieces and orders are whole, so the cost of an episode is a step function of theta.
"""

import sys

import jax
import numpy as np
import optax

import nres

DEMAND = np.array([2.0, 5.0, 10.0, 20.0])  # mean number of pieces per day, for four goods
KEEP, ORDER, LOST = 0.1, 20.0, 5.0  # cost per piece and day, per order, and per lost sale


class Shop(nres.Pool):
    """A shop; `theta` has the logarithms of the reorder levels and of the batches."""

    horizon = 1000

    def initial_theta(self, key):
        return np.log(np.full((2, 4), 30.0, np.float32))

    def advance(self, state, thetas, keys, start, window, length=None):
        members, workers = thetas.shape[:2]
        length = np.full(workers, window) if length is None else length
        level, batch = np.moveaxis(np.ceil(np.exp(thetas)), 2, 0)
        empty = np.zeros((members, workers, 4)), np.zeros((members, workers, 5, 4))
        stock, coming = (part.copy() for part in state or empty)
        stock[:, start == 0], coming[:, start == 0] = 20.0, 0.0
        days = [np.random.default_rng(key).poisson(DEMAND, (self.horizon, 4)) for key in keys]
        total = np.zeros((members, workers))
        for i in range(window):
            going = i < length  # some workers may take fewer steps than others
            today = zip(days, np.minimum(start + i, self.horizon - 1), strict=True)
            demand = np.stack([day[t] for day, t in today])  # the same for all members
            there = stock + coming[:, :, 0]
            left, later = np.maximum(there - demand, 0), np.roll(coming, -1, axis=2)
            orders = left + coming[:, :, 1:].sum(axis=2) <= level
            later[:, :, -1] = np.where(orders, batch, 0)
            cost = KEEP * left + ORDER * orders + LOST * np.maximum(demand - there, 0)
            total += np.where(going, cost.sum(axis=2), 0)
            stock = np.where(going[:, None], left, stock)
            coming = np.where(going[:, None, None], later, coming)
        return nres.Window((stock, coming), total, np.broadcast_to(length, total.shape))


if __name__ == "__main__":
    pool, key, updates = Shop(), jax.random.key(0), 3 if "--quick" in sys.argv else 300
    theta, estimator = pool.initial_theta(key), nres.NRES(pool, workers=50, window=20, sigma=0.1)
    result = nres.train(estimator, optax.adam(0.03), theta, updates=updates, key=key)
    costs = [nres.evaluate(pool, t, key, episodes=20).loss for t in (theta, result.theta)]
    print("cost per day: {:.1f} -> {:.1f}".format(*costs))
    print("reorder levels and batches:", *np.ceil(np.exp(result.theta)).astype(int).tolist())
