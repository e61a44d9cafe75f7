"""What goes to actors, and what comes back."""

import dataclasses
from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import Bool, Float, PyTree

from nres.pools.base import PoolError, Window
from nres.pools.ray.actor import Noisy, Reply, Task
from nres.pools.ray.shares import Kept, RayState, Sent, Share

if TYPE_CHECKING:
    from nres.pools.ray.pool import RayPool


class RayWindow(Window):
    """A window with what can happen to workers that are elsewhere."""

    sigma: Float[np.ndarray, "workers"]
    """The sigma of each worker's noise in this window, which may have begun a while ago."""
    late: Bool[np.ndarray, "workers"]
    """Workers that were not waited for. The next call asks for the same window of theirs again."""
    restarted: Bool[np.ndarray, "workers"]
    """Workers whose state was lost, and made anew."""
    grad: PyTree
    """The sum of the workers' contributions; `None` if nothing was perturbed."""
    norm: Float[np.ndarray, "workers"] | None
    """The norm of each of them."""


class Post:
    """What a call of `advance` sends to each actor."""

    def __init__(
        self,
        pool: "RayPool",
        thetas: PyTree,
        noisy: Noisy | None,
        parts: list[slice],
        rows: tuple[np.ndarray, ...],
        window: int,
    ):
        self.pool, self.noisy, self.parts = pool, noisy, parts
        self.rows, self.window = rows, window
        put, thetas = pool._ray.put, jax.device_get(thetas)
        if noisy is not None:
            self.theta = [put(thetas)] * len(parts)
        else:
            self.theta = [put(jax.tree.map(lambda x, p=p: x[:, p], thetas)) for p in parts]

    def send(self, i: int, share: Share, before: Sent | None = None) -> Sent:
        """Ask for the window of a share, for the first time or after its actor was lost."""
        pool, part, kept = self.pool, self.parts[i], share.kept
        keys, start, length = (row[part] for row in self.rows)
        again = pool._lost(i, share) or (before is not None and share.given[0] is None)
        noisy, sigma = None, np.zeros(len(start), np.float32)
        if self.noisy is not None:
            # A noise keeps the sigma it was first asked for with.
            sigma = self.noisy.sigma[part] if before is None else before.sigma
            noisy = self.noisy.of(part, sigma)
        elif again and start.any():
            raise PoolError("an actor was lost, and only estimators can restart its workers.")
        actor = pool._actors[i]
        result = Kept(actor, next(pool._numbers), pool._forgotten[i])
        forgotten = pool._forgotten[i]  # more may be added at any moment
        forget = tuple(forgotten.pop() for _ in range(len(forgotten)))
        task = Task(
            share=i,
            state=None if kept is None or again else kept.number,
            given=share.given,
            member=None if again else share.member,
            again=again,
            result=result.number,
            forget=forget,
            noisy=noisy,
            keys=keys,
            start=start,
            window=self.window,
            length=length,
        )
        reply = actor.advance.remote(self.theta[i], task)
        attempt = 1 if before is None else before.attempt + 1
        return Sent(reply, result, sigma, again, attempt)


def put_together(
    parts: list[slice], shares: list[Share], sent: list[Sent], replies: dict[int, Reply]
) -> RayWindow:
    """The replies, put together; workers without one are late."""
    some = next(iter(replies.values()))
    norm = None if some.norm is None else np.full(parts[-1].stop, np.nan, some.norm.dtype)
    lanes = (some.loss.shape[0], parts[-1].stop)
    window = RayWindow(
        state=RayState(
            tuple(
                Share(sent[i].result)
                if i in replies
                else dataclasses.replace(share, pending=sent[i])
                for i, share in enumerate(shares)
            )
        ),
        loss=np.full(lanes, np.nan, some.loss.dtype),
        steps=np.zeros(lanes, np.int32),
        ended=np.zeros(lanes, bool),
        sigma=np.concatenate([message.sigma for message in sent]),
        late=np.ones(lanes[1], bool),
        restarted=np.zeros(lanes[1], bool),
        grad=jax.tree.map(lambda *g: sum(g), *[r.grad for _, r in sorted(replies.items())]),
        norm=norm,
    )
    for i, reply in replies.items():
        part = parts[i]
        window.loss[:, part], window.steps[:, part] = reply.loss, reply.steps
        window.ended[:, part] = reply.ended
        window.late[part], window.restarted[part] = False, sent[i].again
        if norm is not None and reply.norm is not None:
            norm[part] = reply.norm
    return window
