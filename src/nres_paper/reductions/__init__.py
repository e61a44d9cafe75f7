"""Reductions of the variance of NRES that were tried: their estimates, measured side by side."""
