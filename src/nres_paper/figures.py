"""Figures and tables that `nres reproduce` makes, by name."""

from collections.abc import Mapping
from types import MappingProxyType

from nres_paper import defaults_table, learning, lorenz, schedule_paths, starts, wall_clock
from nres_paper.celo2_training import CELO2_TRAINED
from nres_paper.comparisons import COMPARISONS
from nres_paper.memory import MEMORY
from nres_paper.recurrent_variance import LSTM_VARIANCE
from nres_paper.reductions.study import REDUCTIONS
from nres_paper.reproduction import PaperFigure, of_comparison
from nres_paper.studies import of_full_es, of_periods

_LEARNED, _LORENZ = "learned-optimizer", "lorenz"

FIGURES: Mapping[str, PaperFigure] = MappingProxyType(
    {
        "lorenz-surface": lorenz.SURFACE,
        "lorenz-paths": lorenz.PATHS,
        **{name: of_comparison(comparison) for name, comparison in COMPARISONS.items()},
        "pes-schedule-paths": schedule_paths.SCHEDULE_PATHS,
        "halfcheetah-starts": starts.STARTS_FIGURE,
        "variance-K": of_periods(_LEARNED, "gpu", "Figure 3"),
        "variance-fulles": of_full_es(_LEARNED, "gpu", "Figure 4 (b)"),
        "variance-lorenz-K": of_periods(_LORENZ, "cpu"),
        "variance-lorenz-fulles": of_full_es(_LORENZ, "cpu"),
        "reductions": REDUCTIONS,
        "learned-optimizer": learning.LEARNED,
        "landscape": learning.LANDSCAPE,
        "celo2-trained": CELO2_TRAINED,
        "rnn-memory": MEMORY,
        "pes-lstm": LSTM_VARIANCE,
        "wall-clock": wall_clock.WALL_CLOCK,
        "defaults": defaults_table.DEFAULTS,
    }
)
