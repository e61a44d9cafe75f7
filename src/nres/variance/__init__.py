"""The variance of gradient estimates: measurements, predictions and advice on settings."""

from nres.variance.advice import Advice as Advice
from nres.variance.advice import Gain as Gain
from nres.variance.advice import advise as advise
from nres.variance.advice import effective_updates as effective_updates
from nres.variance.drift import Hysteresis as Hysteresis
from nres.variance.drift import hysteresis as hysteresis
from nres.variance.grid import Row as Row
from nres.variance.grid import Sweep as Sweep
from nres.variance.grid import sweep as sweep
from nres.variance.measured import Measurement as Measurement
from nres.variance.measured import measure as measure
from nres.variance.predicted import Prediction as Prediction
from nres.variance.predicted import predict as predict
from nres.variance.trajectory import sweep_along as sweep_along
