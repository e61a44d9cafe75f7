"""The reproduction of the paper: its figures and tables, and its claims checked against results.

Li, Harrison, Sohl-Dickstein, Smith, Metz: *Variance-Reduced Gradient Estimation via Noise-Reuse in
Online Evolution Strategies*, NeurIPS 2023. This package uses the public names of `nres`, like any
other user of it, and adds one command to its command line: `nres reproduce`.
"""
