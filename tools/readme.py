"""Fill in the numbers and tables of README.md and docs/ from results/ and the code.

python tools/readme.py [--check]
"""

import re
import sys

import diagnostics_page
import headlines
import large_models_page
import optimizers_page
import reductions_page
import reproduction_page
import scaling_page
import settings_page
from nres_paper.grades import NOT_RUN
from nres_paper.studies import PAPER_FULLES, PAPER_NRES
from results import DEVICES, ROOT, has_results, load, table

ATTACKS = {
    "api": "wrong uses of the Python API",
    "options": "random command lines",
    "damage": "damaged run folders",
    "kills": "runs killed again and again, resumed to their end",
    "races": "runs begun or resumed at the same moment",
}


def throughput() -> str:
    names = ["nres", "floor", "evosax", "evosax, scanned"]
    rows = []
    for backend in DEVICES:
        results = load(f"bench/{backend}.json")["throughput"]
        for workers in dict.fromkeys(row["workers"] for row in results):
            rates = {
                row["implementation"]: row["updates_per_second"]
                for row in results
                if row["workers"] == workers
            }
            steps = rates["nres"] * 2 * workers * 100
            cells = [
                f"{rates[n]:,.0f} ({rates['nres'] / rates[n]:.2f}×)" if n in rates else "–"
                for n in names[1:]
            ]
            rows.append(
                [DEVICES[backend], f"{workers:,}", f"{rates['nres']:,.0f}", *cells, f"{steps:.1e}"]
            )
    heading = ["", "N", "nres", *(f"{n} (nres is)" for n in names[1:]), "nres, unroll steps/s"]
    return table(heading, rows)


def memory() -> str:
    cells: dict[tuple[int, int], dict[str, dict]] = {}
    for row in load("bench/cpu.json")["memory"]:
        cells.setdefault((row["workers"], row["parameters"]), {})[row["noise"]] = row
    rows = []
    for (workers, parameters), by_noise in cells.items():
        row = [f"{workers:,}", f"{parameters:,}"]
        for noise in ("keep", "regenerate"):
            peak, held = by_noise[noise]["peak_bytes"], by_noise[noise]["states_and_noise_bytes"]
            row += [f"{peak / 1e6:,.0f}", f"{held / 1e6:,.1f}"]
        rows.append(row)
    heading = ["N", "d", "noise kept: peak", "held", "regenerated: peak", "held"]
    return table(heading, rows)


def cost() -> str:
    results = load("bench/cpu.json")["cost"]
    rows = []
    for method in dict.fromkeys(row["method"] for row in results):
        cells = [method]
        for system, unit in [("Lorenz", 1e3), ("recurrent", 1e6)]:
            mine = [r for r in results if (r["method"], r["system"]) == (method, system)]
            first, last = mine[0], mine[-1]
            cells.append(f"{first['time_in_unrolls']:.1f} → {last['time_in_unrolls']:.1f}")
            low, high = (f"{row['peak_bytes'] / unit:,.1f}" for row in (first, last))
            cells.append(f"{low} → {high}")
        rows.append(cells)
    return table(
        ["method", "Lorenz: time", "memory, kB", "recurrent network: time", "memory, MB"], rows
    )


def display() -> str:
    return f"{load('bench/cpu.json')['display']['display_cost']:.1%}"


def metrics() -> str:
    return f"{load('bench/cpu.json')['display']['metrics_cost']:.1%}"


def torture() -> str:
    found = load("torture/summary.json")
    rows = [
        [ATTACKS[name], f"{attack['tried']:,}", f"{attack['failed']:,}"]
        for name, attack in found["attacks"].items()
    ]
    seconds = sum(attack["seconds"] for attack in found["attacks"].values())
    return table([f"in {seconds:.0f} s", "tried", "failed"], rows)


def level() -> str:
    return f"{load('compare/comparison.json')['level']:.1f}"


def comparison() -> str:
    return compared("compare/comparison.json", ".1f")


def compared(name: str, form: str) -> str:
    headings = {
        "update": "updates",
        "sequential_steps": "sequential steps",
        "total_steps": "total steps",
        "seconds": "seconds",
    }
    rows = []
    for row in load(name)["methods"]:
        reached, ratio = row["reached"], row["times_longer"]
        cells = [
            "never"
            if reached[axis] is None
            else f"{reached[axis]:.3g}" + (f" ({ratio[axis]:.2f}×)" if ratio[axis] else "")
            for axis in headings
        ]
        rows.append([row["method"], f"{row['final']:{form}}", f"{row['best']:{form}}", *cells])
    return table(["method", "at the end", "at best", *headings.values()], rows)


def early_end() -> str:
    curves = load("early_end/early_end.json")["curves"]
    ends = {rule: [f"{run['return'][-1]:,.0f}" for run in runs] for rule, runs in curves.items()}
    return (
        f"returns of {', '.join(ends['absorbed'])} at the end with the absorbing rule, "
        f"{', '.join(ends['joint restart'])} with a joint restart"
    )


def simulators() -> str:
    rows = [
        [
            f"{row['task']}, N = {row['workers']}, W = {row['window']}",
            *(f"{row[f'{who}_steps_per_second']:,.0f}" for who in ("nres", "raw", "gymnasium")),
            f"{row['of_raw']:.2f}",
            f"{row['unlocking_seconds']:.1f}",
        ]
        for row in load("bench/simulators.json")["simulators"]
    ]
    heading = ["", "nres", "raw MuJoCo", "gymnasium", "nres / raw", "unlocking, s"]
    return table(heading, rows)


def environments() -> str:
    rows = [
        [
            f"{device}, {row['environment']}, N = {row['workers']:,}, W = {row['window']}",
            *(f"{row[f'{who}_steps_per_second']:,.0f}" for who in ("nres", "bare")),
            f"{row['of_bare']:.2f}",
        ]
        for backend, device in DEVICES.items()
        for row in load(f"bench/environments_{backend}.json")["environments"]
    ]
    return table(["", "nres", "bare rollout", "nres / bare"], rows)


def robots() -> str:
    names = {"hopper": "Hopper", "walker2d": "Walker2d", "ant": "Ant", "humanoid": "Humanoid"}
    rows = []
    for task, name in names.items():
        if not has_results(f"walk-{task}"):
            continue  # not run yet
        numbers = load(f"walk-{task}/summary.json")["numbers"]
        times = numbers["shown"]["times"]
        for method, measured in numbers["methods"].items():
            best = sorted(times * value for value in measured["best"])
            returns = [f"{value:,.0f}" for value in dict.fromkeys((best[0], best[-1]))]
            updates, total, sequential = (
                sum(measured["end"][count]) / len(best)
                for count in ("update", "total_steps", "sequential_steps")
            )
            rows.append(
                [
                    f"[{name}](reproduction.md#walk-{task})",
                    f"{times * numbers['level']:,.0f}",
                    method,
                    f"{times * measured['start'][0]:,.0f}",
                    " to ".join(returns),
                    str(len(best)),
                    f"{updates:,.0f}",
                    f"{total / 1e6:.1f} million",
                    f"{sequential:,.0f}",
                ]
            )
    heading = ["", "solved at", "method", "return at the start", "best return", "seeds"]
    return table([*heading, "updates", "total steps", "sequential steps"], rows)


def startup() -> str:
    return f"{load('bench/cpu.json')['startup_seconds']['total']:.1f}"


def demo() -> str:
    rows = [
        [
            row["method"],
            f"{row['updates']:,}",
            f"{row['updates_per_second']:,.0f}",
            f"{row['unroll_steps']:.2e}",
            f"{row['sequential_steps']:.2e}",
            f"{row['seconds']:.2f}",
            f"{row['test_loss']:.1f}",
            f"{row['distance']:.3f}",
        ]
        for row in load("demo/demo.json")["methods"]
    ]
    heading = ["method", "updates", "updates/s", "unroll steps", "sequential steps", "seconds"]
    return table([*heading, "test loss", "distance to truth"], rows)


def variance_periods() -> str:
    sentences = []
    for system, name in (
        ("the learned optimizer", "variance-K"),
        ("Lorenz", "variance-lorenz-K"),
    ):
        if not has_results(name):
            sentences.append(f"on {system}, `{name}` is {NOT_RUN}")
            continue
        tables = [c["rows"] for c in load(f"{name}/measured.json")["checkpoints"]]
        least = sum(min(t, key=lambda r: r["variance"])["method"] == "NRES" for t in tables)
        ratios = [
            next(r["variance"] for r in t if r["method"] == "PES")
            / next(r["variance"] for r in t if r["method"] == "NRES")
            for t in tables
        ]
        sentences.append(
            f"on {system}, NRES has the least variance at {least} of {len(tables)} checkpoints, "
            f"and PES has {min(ratios):.0f} to {max(ratios):.0f} times as much"
        )
    return "; ".join(sentences)


def variance_picture() -> str:
    return picture(
        "variance-K", "Learned optimizers: total variance against the period, at eight checkpoints"
    )


def landscape_picture() -> str:
    return picture("landscape", "The loss along a random direction, and the norm of its gradient")


def picture(name: str, what: str) -> str:
    """Show the drawing of a figure, or say that there is none."""
    if not has_results(name):
        return f"\n(`{name}` is {NOT_RUN}.)\n"
    return f"\n![{what}](../results/{name}/{name}.png)\n"


def variance_fulles() -> str:
    if not has_results("variance-fulles"):
        return f"\n(`variance-fulles` is {NOT_RUN}.)\n"
    rows = []
    for i, entry in enumerate(load("variance-fulles/measured.json")["checkpoints"]):
        by_method = {row["method"]: row for row in entry["rows"]}
        nres, full = by_method["NRES"], by_method["FullES"]
        scale = full["total_steps"] / nres["total_steps"]
        cells = [
            f"{row['variance'] / n:.3g} ± {(row['high'] - row['low']) / 2 / n:.2g}"
            for row, n in ((nres, scale), (full, 1))
        ]
        ratio = full["variance"] / nres["variance"] * scale
        paper = PAPER_NRES[i], PAPER_FULLES[i]
        rows.append(
            [
                f"{entry['update']:,}",
                *cells,
                f"{ratio:.0f}",
                *(f"{value:.3g}" for value in paper),
                f"{paper[1] / paper[0]:.0f}",
            ]
        )
    heading = ["updates of PES", "1,000 × NRES", "1 × FullES", "ratio"]
    return table([*heading, "paper: NRES", "FullES", "ratio"], rows)


def variance_lorenz() -> str:
    ratios = []
    for entry in load("variance-lorenz-fulles/measured.json")["checkpoints"]:
        steps = {row["method"]: row["variance"] * row["total_steps"] for row in entry["rows"]}
        ratios.append(steps["FullES"] / steps["NRES"])
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def theory() -> str:
    parts = []
    for name, part in load("theory/theory.json")["theory"].items():
        ratios = {r["sigma"]: part["by_derivatives"] / r["variance"] for r in part["measured"]}
        good = max(s for s, ratio in ratios.items() if 0.8 < ratio < 1.25)
        last = min(ratios, key=lambda s: abs(s - 0.04))
        parts.append(
            f"{name}, the prediction from derivatives is correct up to σ ≈ {good:.0e}, and "
            f"{ratios[last]:,.0f} times too large at σ = {last:.2g}"
        )
    return "; ".join(parts)


def old_histories() -> str:
    rows = load("theory/theory.json")["hysteresis"]
    cells = [
        [
            f"{row['rate']:.1e}",
            f"{row['drift']:.2g}",
            f"{row['bias'] / row['norm']:.1%}",
            f"{row['bias_stderr'] / row['norm']:.1%}",
            f"{row['cosine']:.3f}",
        ]
        for row in rows
    ]
    heading = ["learning rate", "θ moved in an episode", "bias / gradient", "standard error"]
    return table([*heading, "cosine"], cells)


def sweep_speed() -> str:
    rates = load("theory/theory.json")["steps_per_second"]
    return f"{rates['sweep'] / rates['plain unrolls']:.2f}"


PARTS = (
    *headlines.PARTS,
    *large_models_page.PARTS,
    *scaling_page.PARTS,
    *reproduction_page.PARTS,
    *settings_page.PARTS,
    *diagnostics_page.PARTS,
    *reductions_page.PARTS,
    *optimizers_page.PARTS,
    variance_periods,
    variance_picture,
    landscape_picture,
    variance_fulles,
    variance_lorenz,
    theory,
    old_histories,
    sweep_speed,
    throughput,
    memory,
    cost,
    display,
    metrics,
    torture,
    level,
    comparison,
    startup,
    demo,
    early_end,
    simulators,
    environments,
    robots,
)


def filled(text: str) -> str:
    parts = {part.__name__: part for part in PARTS}
    marked = re.compile(rf"(<!-- ({'|'.join(parts)}) -->).*?(<!-- end -->)", re.DOTALL)
    return marked.sub(lambda found: found[1] + parts[found[2]]() + found[3], text)


if __name__ == "__main__":
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = page.read_text()
        if "--check" not in sys.argv:
            page.write_text(filled(text))
        elif filled(text) != text:
            sys.exit(f"{page.name} is out of date: run tools/readme.py")
