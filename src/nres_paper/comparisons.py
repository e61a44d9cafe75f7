"""All comparisons of the paper, by name."""

from collections.abc import Mapping
from types import MappingProxyType

from nres_paper.celo2_comparisons import CELO2_COMPARISONS
from nres_paper.default_comparisons import DEFAULT_COMPARISONS
from nres_paper.large_comparisons import LARGE_COMPARISONS
from nres_paper.lorenz_comparisons import LORENZ_COMPARISONS
from nres_paper.mujoco_comparisons import MUJOCO_COMPARISONS
from nres_paper.optimizer_comparisons import OPTIMIZER_COMPARISONS
from nres_paper.pes_comparisons import PES_COMPARISONS
from nres_paper.plans import Comparison
from nres_paper.rate_comparisons import RATE_COMPARISONS
from nres_paper.recurrent_comparisons import RECURRENT_COMPARISONS
from nres_paper.walking_comparisons import WALKING_COMPARISONS

COMPARISONS: Mapping[str, Comparison] = MappingProxyType(
    {
        **LORENZ_COMPARISONS,
        **OPTIMIZER_COMPARISONS,
        **MUJOCO_COMPARISONS,
        **RATE_COMPARISONS,
        **DEFAULT_COMPARISONS,
        **PES_COMPARISONS,
        **RECURRENT_COMPARISONS,
        **WALKING_COMPARISONS,
        **CELO2_COMPARISONS,
        **LARGE_COMPARISONS,
    }
)
