"""Gradient estimators."""

from nres.estimators.base import Estimate as Estimate
from nres.estimators.base import Estimator as Estimator
from nres.estimators.base import NonFiniteError as NonFiniteError
from nres.estimators.base import Steps as Steps
from nres.estimators.es import GPES as GPES
from nres.estimators.es import NRES as NRES
from nres.estimators.es import PES as PES
from nres.estimators.es import TES as TES
from nres.estimators.es import FullES as FullES
