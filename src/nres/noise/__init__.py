"""Noise: the distributions of perturbations, and the noise that workers carry."""

from nres.noise.adaptive import Adaptation as Adaptation
from nres.noise.adaptive import AdaptiveSigma as AdaptiveSigma
from nres.noise.factors import Factors as Factors
from nres.noise.gaussian import Gaussian as Gaussian
from nres.noise.gaussian import draw_signs as draw_signs
from nres.noise.gaussian import threefry as threefry
from nres.noise.law import Group as Group
from nres.noise.law import Noise as Noise
from nres.noise.law import NoiseState as NoiseState
from nres.noise.law import scale_rows as scale_rows
from nres.noise.law import update_noise as update_noise
from nres.noise.law import where_worker as where_worker
from nres.noise.low_rank import LowRank as LowRank
from nres.noise.orthogonal import Orthogonal as Orthogonal
