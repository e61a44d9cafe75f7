"""Generate the tables and numbers of docs/scaling.md from results/."""

from results import load, table


def devices() -> str:
    rows = [
        [
            f"{row['devices']}",
            f"{row['workers']:,}",
            f"{row['updates_per_second']:,.0f}",
            f"{row['one_device']:,.0f}",
            f"{row['of_one_device']:.2f}",
        ]
        for row in load("bench/scaling.json")["devices"]
    ]
    heading = ["simulated devices", "N", "updates/s", "all workers on one device", "ratio"]
    return table(heading, rows)


def actors() -> str:
    rows = [
        [
            f"{row['actors']}",
            f"{row['workers']:,}",
            *(milliseconds(row[name]) for name in ("send", "unroll", "ray", "here", "whole")),
            milliseconds(row["without_ray"]),
            f"{row['of_without_ray']:.2f}",
        ]
        for row in load("bench/actors.json")["scaling"]
    ]
    phases = ["send θ and tasks", "unroll", "other waiting", "reduce", "total"]
    return table(["actors", "N", *phases, "without Ray", "ratio"], rows)


def messages() -> str:
    rows = [
        [
            f"{row['actors']}",
            f"{row['workers']:,}",
            f"{row['parameters']:,}",
            *(milliseconds(row[name]) for name in ("send", "unroll", "ray", "here", "whole")),
            *(f"{row[f'{name}_bytes'] / 1000:,.1f}" for name in ("theta", "out", "in")),
        ]
        for row in load("bench/actors.json")["overhead"]
    ]
    phases = ["send θ and tasks", "in the actor", "other waiting", "reduce", "total"]
    return table(["actors", "N", "d", *phases, "θ, kB", "tasks, kB", "replies, kB"], rows)


def bytes_per_worker() -> str:
    rows = load("bench/actors.json")["overhead"]
    few, many = (next(r for r in rows if r["workers"] == n) for n in (1_000, 10_000))
    out, back = ((many[name] - few[name]) / 9_000 for name in ("out_bytes", "in_bytes"))
    return f"{out:.0f} bytes out and {back:.0f} bytes back"


def ray_overhead() -> str:
    rows = load("bench/actors.json")["overhead"][:3]
    return ", ".join(f"{milliseconds(r['whole'])} ms with {r['actors']}" for r in rows)


def seconds_per_number() -> str:
    return f"{load('bench/actors.json')['drawing']['seconds_a_number'] * 1e9:.0f} ns"


def cost_per_actor() -> str:
    costs = load("scaling/cluster.json")["measured"]
    actor, worker = milliseconds(costs["ask_actor"]), costs["ask_worker"] * 1e6
    return f"{actor} ms per actor and {worker:.2f} µs per worker"


def cluster() -> str:
    phases = ("ask", "theta out", "unroll", "stragglers", "replies", "driver", "failures")
    rows = [
        [
            f"{row['machines']:,}",
            f"{row['parameters']:,}",
            f"{row['window']}",
            *(f"{row[name]:.2g}" for name in phases),
            f"{row['seconds']:.2g}",
            f"{row['unrolling']:.0%}",
        ]
        for row in load("scaling/cluster.json")["rows"]
        if row["actors_sum"] and row["machines"] in (10, 100, 1_000)
    ]
    headings = ["ask actors", "send θ", *phases[2:], "total", "share of unrolling"]
    return table(["machines", "d", "W", *headings], rows)


def noise_in_driver() -> str:
    rows = [r for r in load("scaling/cluster.json")["rows"] if r["machines"] == 1_000]
    seconds = {(r["parameters"], r["actors_sum"]): r["seconds"] for r in rows if r["window"] == 20}
    return " and ".join(
        f"{seconds[d, False]:,.0f} s instead of {seconds[d, True]:.2g} with d = {d:,}"
        for d in (102, 100_000)
    )


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}"


PARTS = (
    devices,
    actors,
    messages,
    bytes_per_worker,
    ray_overhead,
    seconds_per_number,
    cost_per_actor,
    cluster,
    noise_in_driver,
)
