"""Gradient estimators."""

from nres.estimators.ad import Differentiating as Differentiating
from nres.estimators.ad import for_lanes as for_lanes
from nres.estimators.backprop import BPTT as BPTT
from nres.estimators.backprop import TBPTT as TBPTT
from nres.estimators.base import Estimator as Estimator
from nres.estimators.es import GPES as GPES
from nres.estimators.es import NRES as NRES
from nres.estimators.es import PES as PES
from nres.estimators.es import TES as TES
from nres.estimators.es import FullES as FullES
from nres.estimators.forward import DODGE as DODGE
from nres.estimators.forward import UORO as UORO
from nres.estimators.nonfinite import NonFiniteError as NonFiniteError
from nres.estimators.rtrl import RTRL as RTRL
from nres.estimators.values import Estimate as Estimate
from nres.estimators.values import EstimatorState as EstimatorState
from nres.estimators.values import Info as Info
from nres.workers import Carry as Carry
from nres.workers import Response as Response
from nres.workers import Steps as Steps
from nres.workers import Workers as Workers
