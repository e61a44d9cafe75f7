"""`Auto`: the plan of a run whose settings are chosen by trials, as with `nres train --auto`."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nres.runs import Run, RunError, Settings, build, resolve, tune_settings


@dataclasses.dataclass(frozen=True)
class Auto:
    """The plan of a run whose settings are chosen by trials, as with `nres train --auto`."""

    given: Mapping[str, Any]
    """The arguments of `nres.runs.resolve` that are not left to the trials."""
    budget: Mapping[str, float]
    """The total and the sequential steps, of which the trials take some."""

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.given["seed"]

    @property
    def lr(self) -> None:
        """The learning rate is left to the trials."""

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON."""
        return {"given": dict(self.given), "budget": dict(self.budget)}

    def untuned(self) -> Settings:
        """Return the settings of the preset, with the shortest window, without any trials."""
        return resolve(**{"window": 1, **self.given})

    def settings(self, folder: Path) -> Settings:
        """Return the settings of the run in a folder; choose them by trials if there is none."""
        if not (folder / "config.json").exists():
            chosen = tune_settings(self.given, self.budget, build)
            Run.create(folder, chosen.settings, chosen.components, tuning=chosen.record)
        run = Run.open(folder)
        untuned, budget = self.untuned(), run.config.get("tuning", {}).get("budget")
        other = [n for n in self.given if getattr(run.settings, n) != getattr(untuned, n)]
        if other or budget != self.budget:
            raise RunError(
                f"{folder} holds a run with other settings: choose another folder with --out."
            )
        return run.settings
