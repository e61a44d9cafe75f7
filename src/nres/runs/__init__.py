"""Runs: their settings, folders, metrics and checkpoints, and their execution."""

from nres.runs.compare import Evaluations as Evaluations
from nres.runs.compare import curves as curves
from nres.runs.compare import early_level as early_level
from nres.runs.compare import times_to_level as times_to_level
from nres.runs.components import Components as Components
from nres.runs.components import build as build
from nres.runs.defaults import resolve as resolve
from nres.runs.execution import Outcome as Outcome
from nres.runs.execution import execute as execute
from nres.runs.folder import Run as Run
from nres.runs.folder import RunError as RunError
from nres.runs.folder import new_path as new_path
from nres.runs.methods import METHODS as METHODS
from nres.runs.methods import OPTIMIZERS as OPTIMIZERS
from nres.runs.metrics import read_metrics as read_metrics
from nres.runs.names import SettingsError as SettingsError
from nres.runs.settings import Settings as Settings
