"""Reproduction of the paper: its figures and tables, and its claims checked against results.

Li, Harrison, Sohl-Dickstein, Smith, Metz: *Variance-Reduced Gradient Estimation via Noise-Reuse in
Online Evolution Strategies*, NeurIPS 2023. This package uses only the public names of `nres`,
as any other program would, and adds one command to the command line: `nres reproduce`.
"""
