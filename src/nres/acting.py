"""`Actor`: a policy with its memory and the moments of observations, for many lanes at once.

Everything here works on NumPy arrays and on JAX arrays, so that simulators of both kinds share it.
"""

import dataclasses
from typing import Any

from jaxtyping import Array, Float, Key, PyTree

from nres.arrays import namespace
from nres.checks import true_or_false
from nres.measured import Moments
from nres.policies import AnyPolicy
from nres.system import Theta

# The variance below which a component counts as constant.
SMALLEST_VARIANCE = 1e-8
# The largest size of a normalised observation, in standard deviations: moments may be those of a
# robot that stands still, and its first stumble would otherwise lead to enormous actions.
LARGEST = 10.0
# The entries of an actor's state that add up observations.
_SEEN = ("count", "first", "second")


@dataclasses.dataclass(frozen=True)
class Actor:
    """A policy, with what it keeps from step to step in a dictionary of arrays.

    With `normalise`, `theta` is a dictionary with the entries `policy` and `observations`, an
    `nres.measured.Moments`. An episode keeps the moments with which it began. Without it, `theta`
    is that of the policy.

    Args:
        policy: The policy.
        observations: The number of components of an observation.
        normalise: True to give the policy observations with mean 0 and variance 1, at most 10 in
            size.
    """

    policy: AnyPolicy
    observations: int
    normalise: bool = False

    def __post_init__(self):
        true_or_false("normalise", self.normalise)

    def initial_theta(self, key: Key[Array, ""]) -> Theta:
        """Return the parameters to start from."""
        return self.with_moments(self.policy.initial_theta(key))

    def with_moments(self, theta: Theta) -> Theta:
        """Return parameters of the policy with moments of no observations, if it needs moments."""
        if not self.normalise:
            return theta
        return {"policy": theta, "observations": Moments.empty(self.observations)}

    @property
    def memory(self) -> int:
        """The number of values that a recurrent policy remembers; 0 for other policies."""
        return getattr(self.policy, "memory", 0)

    def begin(self, thetas: PyTree, like: Any) -> dict[str, Any]:
        """Return what lanes keep at the start of an episode.

        Args:
            thetas: The parameters, with an axis of lanes in front of every leaf.
            like: An observation of each lane, for its kind of array and its precision.
        """
        self._check_moments(thetas)
        xp, state = namespace(like), {}
        if self.memory:
            state["memory"] = xp.zeros((like.shape[0], self.memory), like.dtype)
        if self.normalise:
            moments = thetas["observations"]
            count = xp.asarray(moments.count, like.dtype)[:, None]
            known = count > 1  # before, observations are only clipped
            variance = xp.where(known, moments.square / xp.maximum(count, 1), 1)
            # A component that never varied stays in its own unit.
            variance = xp.where(variance > SMALLEST_VARIANCE, variance, 1)
            state["mean"] = xp.asarray(moments.mean, like.dtype)
            state["precision"] = 1 / xp.sqrt(variance)
            state["count"] = xp.zeros(like.shape[0], like.dtype)
            state |= {name: xp.zeros_like(like) for name in ("first", "second")}
        return state

    def _check_moments(self, thetas: PyTree) -> None:
        moments = thetas.get("observations") if isinstance(thetas, dict) else None
        if not self.normalise and isinstance(moments, Moments):
            raise ValueError("theta has moments of observations, which need normalise=True.")
        if self.normalise and not isinstance(moments, Moments):
            raise ValueError(
                "with normalise=True, theta is a dictionary with the entries policy and "
                "observations, as from initial_theta."
            )
        if moments is not None and moments.mean.shape[-1:] != (self.observations,):
            raise ValueError(
                f"theta has moments of {moments.mean.shape[-1]} components, but observations have "
                f"{self.observations}."
            )

    def act(
        self, thetas: PyTree, state: dict[str, Any], observations: Float[Any, "lanes observations"]
    ) -> tuple[Float[Any, "lanes actions"], dict[str, Any]]:
        """Return one action per lane, and what the lanes keep for the next step."""
        state = dict(state)
        if self.normalise:
            thetas = thetas["policy"]
            centred = observations - state["mean"]
            state["count"] = state["count"] + 1
            state["first"] = state["first"] + centred
            state["second"] = state["second"] + centred**2
            xp = namespace(observations)
            observations = xp.clip(centred * state["precision"], -LARGEST, LARGEST)
        policy: Any = self.policy
        if not self.memory:
            return policy.act(thetas, observations), state
        actions, state["memory"] = policy.act(thetas, observations, state["memory"])
        return actions, state

    def observed(
        self, thetas: PyTree, before: dict[str, Any], after: dict[str, Any]
    ) -> tuple[PyTree, ...] | None:
        """Return what lanes observed between two states of an episode, for `Moments.updated`.

        Sums of deviations from the mean with which the episode began become sums of deviations from
        the present mean.
        """
        if not self.normalise:
            return None
        count, first, second = (after[name] - before[name] for name in _SEEN)
        shift = after["mean"] - thetas["observations"].mean
        number = count[:, None]
        return ((count, first + number * shift, second + 2 * shift * first + number * shift**2),)
