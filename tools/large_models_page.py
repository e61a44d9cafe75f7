"""The parts of the page about large models that come from results/."""

from nres_paper.large_comparisons import BIGRAM, RANKS, UNIGRAM
from results import DEVICES, load, table

WAYS = ("low rank", "Gaussian", "inference")


def large_models() -> str:
    rows = []
    for backend, device in DEVICES.items():
        for row in load(f"bench/large_models_{backend}.json")["large_models"]:
            speeds = [row.get(f"{name}, tokens/s") for name in WAYS]
            rows.append(
                [
                    f"{device}, d = {row['parameters']:,}, N = {row['workers']:,}",
                    *(f"{speed:,.0f}" if speed else "–" for speed in speeds),
                    f"{row['of inference']:.2f}",
                ]
            )
    headings = ["", "NRES, rank 1", "NRES, Gaussian", "inference", "rank 1 / inference"]
    return table(headings, rows)


def text_model() -> str:
    methods = load("text/summary.json")["numbers"]["methods"]
    rows = [["frequencies of single bytes", f"{UNIGRAM}", "", "", ""]]
    rows.append(["frequencies of pairs of bytes", f"{BIGRAM}", "", "", ""])
    for name, called in (("NRES", "NRES, rank 1"), ("TBPTT", "TBPTT")):
        best, end = methods[name]["best"], methods[name]["end"]
        spent = (sum(end[what]) / len(best) for what in ("update", "total_steps", "seconds"))
        updates, tokens, seconds = spent
        values = f"{min(best):.2f} to {max(best):.2f}"
        rows.append([called, values, f"{updates:,.0f}", f"{tokens:.1e}", f"{seconds:.0f}"])
    return table(["", "bits per byte", "updates", "bytes read", "seconds"], rows)


def text_factor() -> str:
    methods = load("text/summary.json")["numbers"]["methods"]
    return f"{1 / methods['TBPTT']['times_longer']:.0f}"


def rank_losses() -> str:
    methods = load("lopt-rank/summary.json")["numbers"]["methods"]
    rows = []
    for name in ("NRES", *(f"rank {rank}" for rank in RANKS)):
        best = methods[name]["best"]
        label = "Gaussian" if name == "NRES" else name
        rows.append([label, f"{min(best):.3f} to {max(best):.3f}", str(len(best))])
    return table(["", "best loss", "seeds"], rows)


PARTS = (large_models, text_model, text_factor, rank_losses)
