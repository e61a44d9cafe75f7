"""All of the paper's figures and tables, by name."""

from collections.abc import Mapping
from types import MappingProxyType

from nres.experiments import learning, lorenz, starts, wall_clock
from nres.experiments.exhibits import Exhibit, of_race
from nres.experiments.races import RACES
from nres.experiments.studies import of_full_es, of_periods

_LEARNED, _LORENZ = "learned-optimizer", "lorenz"

EXHIBITS: Mapping[str, Exhibit] = MappingProxyType(
    {
        "lorenz-surface": lorenz.SURFACE,
        "lorenz-paths": lorenz.PATHS,
        **{name: of_race(race) for name, race in RACES.items()},
        "halfcheetah-starts": starts.STARTS_EXHIBIT,
        "variance-K": of_periods(_LEARNED, "gpu", "fig:variance"),
        "variance-fulles": of_full_es(_LEARNED, "gpu", "fig:nres_vs_fulles"),
        "variance-lorenz-K": of_periods(_LORENZ, "cpu"),
        "variance-lorenz-fulles": of_full_es(_LORENZ, "cpu"),
        "learned-optimizer": learning.LEARNED,
        "landscape": learning.LANDSCAPE,
        "wall-clock": wall_clock.WALL_CLOCK,
    }
)
