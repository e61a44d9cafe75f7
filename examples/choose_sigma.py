"""Choose sigma and a method by measuring the variance at the initial parameters."""

import sys

import jax

import nres

QUICK = "--quick" in sys.argv

system = nres.systems.Lorenz(horizon=200 if QUICK else 2000)
theta, key = system.initial_theta(), jax.random.key(0)
window = system.horizon // 20
table = nres.variance.sweep(
    system,
    theta,
    key,
    windows=[window, system.horizon],
    periods=[window, system.horizon],
    sigmas=[0.01, 0.04] if QUICK else [0.01, 0.02, 0.04, 0.08],
    samples=64 if QUICK else 4096,
)
# PES draws new noise in every window, NRES once per episode. FullES is NRES with one long window.
print(f"{'method':>8} {'sigma':>6} {'window':>7} {'variance':>10} {'signal/noise':>13}")
for row in table.rows:
    print(f"{row.method:>8} {row.sigma:6g} {row.window:7d} {row.variance:10.3g} {row.snr:13.3g}")
