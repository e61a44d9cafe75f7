"""Choose the settings of a run by short trials."""

from nres.tuning.choice import Tuned as Tuned
from nres.tuning.choice import tune as tune
from nres.tuning.probes import Probe as Probe
from nres.tuning.trials import Trial as Trial
