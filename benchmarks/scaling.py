"""Updates per second as devices are added, with a fixed number of workers per device.

python benchmarks/scaling.py [--quick] [--out FOLDER]

On a CPU, the devices are simulated and share its cores. The benchmark then measures the cost of
distributing the workers, and not the gain from a larger machine.
"""

import os
import sys
import time

if "jax" not in sys.modules:  # the flag has no effect after the import
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=8"

import jax
import optax

import nres
from run import publish

PER_DEVICE = 200


def updates_per_second(devices: int, workers: int, budget: float) -> float:
    system = nres.systems.Lorenz()
    placement: nres.placement.Placement = nres.placement.Local()
    if devices:
        mesh = jax.make_mesh((devices,), ("workers",), devices=jax.devices()[:devices])
        placement = nres.placement.Devices(mesh)
    estimator = nres.NRES(system, workers=workers, window=100, sigma=0.04, placement=placement)
    optimizer = optax.sgd(1e-6)
    result = nres.train(
        estimator, optimizer, system.initial_theta(), updates=20, key=jax.random.key(0)
    )
    made, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < budget:
        result = nres.train(estimator, optimizer, result.theta, updates=200, state=result.state)
        made += 200
    return made / passed


def run(quick: bool) -> list[dict]:
    rows, budget = [], 0.1 if quick else 4.0
    for devices in (1, 2) if quick else (1, 2, 4, 8):
        workers = PER_DEVICE * devices
        # Compare with the same work without a mesh, in the same run.
        plain = updates_per_second(0, workers, budget)
        shared = updates_per_second(devices, workers, budget)
        rows.append(
            {
                "devices": devices,
                "workers": workers,
                "updates_per_second": shared,
                "steps_per_second": shared * 2 * workers * 100,
                "one_device": plain,
                "of_one_device": shared / plain,
            }
        )
    return rows


def main() -> None:
    title = "NRES on Lorenz, W = 100, 200 workers per device"
    publish(__doc__, run, title, "devices", "scaling.json")


if __name__ == "__main__":
    main()
