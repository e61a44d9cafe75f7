"""Figures of results, each drawn by one function into a file, in a common style."""

from nres.figures.lorenz import draw_surface as draw_surface
from nres.figures.lorenz import lorenz_paths as lorenz_paths
from nres.figures.lorenz import losses_at as losses_at
from nres.figures.optimizers import optimizers_figure as optimizers_figure
from nres.figures.runs import comparison_figure as comparison_figure
from nres.figures.runs import run_figure as run_figure
from nres.figures.style import COLOURS as COLOURS
from nres.figures.style import DASHED as DASHED
from nres.figures.style import DISPLAY_NAMES as DISPLAY_NAMES
from nres.figures.style import line_style as line_style
from nres.figures.style import log_if_positive as log_if_positive
from nres.figures.style import plain_numbers as plain_numbers
from nres.figures.variance import advice_figure as advice_figure
from nres.figures.variance import periods_figure as periods_figure
from nres.files import save_drawing as save_drawing
from nres.files import save_figure as save_figure
