"""The variance of gradient estimates: measured, predicted, and what follows for one's choices."""

from nres.variance.measured import Measurement as Measurement
from nres.variance.measured import measure as measure
from nres.variance.predicted import Prediction as Prediction
from nres.variance.predicted import predict as predict
