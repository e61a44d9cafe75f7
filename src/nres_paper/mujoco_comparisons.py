"""Comparisons of the paper on MuJoCo tasks, as data."""

from collections.abc import Mapping
from typing import Any

from nres_paper.claims import Never, NoSlower, Reaches, Slower, Sooner
from nres_paper.plans import Comparison, PlannedRun, often, plan

_RL: dict[str, Any] = {
    "tier": "cpu",
    "axis": "sequential_steps",
    # An evaluation already averages twenty episodes, but a policy may be good only once.
    "smooth": 3,
    "scale": -1000.0,
    "shown": "return",
}
SWIMMER_SOLVED, HALFCHEETAH_SOLVED = -0.325, -3.43
_SWIMMER: dict[str, Any] = _RL | {"system": "swimmer", "level": SWIMMER_SOLVED}
_HALFCHEETAH: dict[str, Any] = _RL | {
    "system": "halfcheetah",
    "level": HALFCHEETAH_SOLVED,
    "seeds": (0, 1, 2, 3, 4),
    "evaluations": 100,
}
_NRES_SWIMMER = often("nres", 100, 1, budget=200)

MUJOCO_COMPARISONS: Mapping[str, Comparison] = {
    "swimmer": Comparison(
        label="Figure 7 (a) and Table 3",
        claim="NRES solves Swimmer with 10 times fewer sequential steps than FullES, and with the "
        "fewest steps in total.",
        runs={
            "NRES": _NRES_SWIMMER,
            "PES": often("pes", 200, 2),
            "TES": often("tes", 200, 2),
            "FullES": often("fulles", 100, 1, budget=200),
        },
        claims=(
            Slower("FullES", 10.0),
            Sooner(("NRES", "FullES", "PES"), "total_steps"),
            Slower("FullES", axis="total_steps", percent=26),
            Reaches("NRES", 1.11e5),
            Reaches("FullES", 1.50e5),
            Reaches("PES", 5.85e5),
            Never("TES"),
        ),
        seeds=tuple(range(20)),
        **_SWIMMER,
    ),
    "ablation-N": Comparison(
        label="Figure 14",
        claim="With more workers, NRES needs fewer sequential steps to solve Swimmer.",
        runs={
            "N = 100": often("nres", 60, 1, settings={"workers": 100}),
            "NRES": PlannedRun(**vars(_NRES_SWIMMER) | {"label": "N = 30"}),
            "N = 10": often("nres", 200, 2, settings={"workers": 10}),
        },
        claims=(Sooner(("N = 100", "NRES", "N = 10")),),
        remark="For any number of workers, the first 900 steps bring the workers to different "
        "steps of their episodes.",
        shares="swimmer",
        seeds=tuple(range(10)),
        **_SWIMMER,
    ),
    "halfcheetah": Comparison(
        label="Figure 7 (b) and Table 3",
        claim="NRES solves HalfCheetah with 60 times fewer sequential steps than FullES, and with "
        "the fewest steps in total; PES and TES do not solve it.",
        runs=plan({"NRES": 1000, "FullES": 1000})
        | {
            "PES": often("pes", 6000, 50, seeds=2, budget=30_000),
            "PES, 30,000 updates": often("pes", 30_000, 100, seeds=1),
            "TES": often("tes", 1600, 10, seeds=3),
        },
        claims=(
            Slower("FullES", 60.0),
            Slower("FullES", axis="total_steps", percent=22),
            Reaches("NRES", 5.81e6),
            Reaches("FullES", 7.54e6),
            NoSlower("NRES", "FullES", "hysteresis has little effect"),
            Never("PES"),
            Never("PES, 30,000 updates"),
            Never("TES"),
        ),
        remark="The initial parameters are the paper's. Its runs of PES made 30,000 updates, 3.6e8 "
        "steps; two seeds of PES make 6,000 here, and one with 30,000 is planned. NRES and FullES "
        "estimate the gradient of the same loss, with the same learning rate and as many steps per "
        "update. NRES alone has hysteresis, because parameters change during its episodes.",
        **_HALFCHEETAH,
    ),
    "halfcheetah-mlp": Comparison(
        label="Figure 13",
        claim="With a policy of d = 726 parameters, only NRES solves HalfCheetah within the "
        "budget.",
        # Fifteen million steps each: an update of TES takes 1.5 times as many steps.
        runs={
            "NRES": PlannedRun("nres", 1250, {"lr": "3e-5"}),
            "FullES": PlannedRun("fulles", 1250, {"lr": "3e-5"}),
            "PES": PlannedRun("pes", 1250, {"lr": "3e-6"}),
            "TES": PlannedRun("tes", 830, {"lr": "3e-5"}),
            "NRES, rate 1e-4": PlannedRun("nres", 1250, {"lr": "1e-4"}),
            "FullES, rate 1e-4": PlannedRun("fulles", 1250, {"lr": "1e-4"}),
            "PES, rate 1e-5": PlannedRun("pes", 1250, {"lr": "1e-5"}),
            "TES, rate 1e-4": PlannedRun("tes", 830, {"lr": "1e-4"}),
        },
        claims=(
            Reaches("NRES"),
            Never("PES"),
            Never("TES"),
            Never("FullES"),
            Slower("FullES", 50.0),
            Reaches("NRES, rate 1e-4"),
            Never("PES, rate 1e-5"),
            Never("TES, rate 1e-4"),
            Never("FullES, rate 1e-4"),
            Slower("FullES, rate 1e-4", 50.0, than="NRES, rate 1e-4"),
        ),
        remark="The initial parameters are the paper's. It does not publish the learning rates of "
        "this policy, so the rates of the linear policy and rates three times as large are both "
        "reported. The paper does not state its budget; here it is fifteen million steps. With "
        "all methods but TES, the robot soon stands still, and noise of 0.004 does not move it.",
        **_HALFCHEETAH
        | {"options": {"policy": "mlp:30:relu", "variance": 0.3}, "seeds": (0, 1, 2)},
    ),
    "ablation-sigma": Comparison(
        label="Figure 15",
        claim="On HalfCheetah, sigma = 0.001 fails, sigma = 0.004 and 0.01 work, and FullES takes "
        "more than 50 times as many sequential steps as NRES.",
        runs={
            name: PlannedRun(name.lower(), 1000, label=f"{name}, sigma = 0.004")
            for name in ("NRES", "FullES")
        }
        | {
            f"{name}, sigma = {sigma}": PlannedRun(name.lower(), 1000, {"sigma": sigma}, seeds=3)
            for name in ("NRES", "FullES")
            for sigma in ("0.001", "0.01")
        },
        claims=(
            Never("NRES, sigma = 0.001"),
            Never("FullES, sigma = 0.001"),
            Reaches("NRES"),
            Reaches("FullES"),
            Reaches("NRES, sigma = 0.01"),
            Reaches("FullES, sigma = 0.01"),
            Slower("FullES", 50.0, more=True),
            Slower("FullES, sigma = 0.01", 50.0, than="NRES, sigma = 0.01", more=True),
        ),
        remark="The right panel shows all runs relative to NRES with sigma = 0.004; the table "
        "shows FullES with sigma = 0.01 relative to NRES with sigma = 0.01.",
        shares="halfcheetah",
        **_HALFCHEETAH,
    ),
}
