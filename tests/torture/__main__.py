"""Attack the library for a given time, and count the attacks that it does not survive.

python tests/torture [--seconds 600] [--seed 0] [--out results/torture] [--only NAME ...]
"""

import argparse
import contextlib
import importlib
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

# The attacks and their shares of the time.
SHARES = {"api": 2, "options": 2, "damage": 3, "kills": 2, "races": 2}
# The number of failures that are reported in full; all of them are counted.
TOLD = 20


def main() -> int:
    """Run the attacks, write the results, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600, help="Stop after about this time.")
    parser.add_argument("--tries", type=int, help="Stop each attack after this number of tries.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of all random choices.")
    parser.add_argument(
        "--out", type=Path, default=Path("results/torture"), help="The folder to write to."
    )
    parser.add_argument(
        "--only", nargs="+", choices=SHARES, default=list(SHARES), help="Run only these attacks."
    )
    arguments = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="nres-torture-"))
    # The first folder is for the user's state, and processes share compiled code in the second.
    os.environ["XDG_STATE_HOME"] = str(scratch / "state")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(scratch / "compiled")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["COLUMNS"] = "200"
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    try:
        most = arguments.tries or sys.maxsize
        results = run(arguments.only, arguments.seconds, most, arguments.seed, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    write(arguments.out / "summary.json", arguments.seconds, arguments.seed, results)
    return int(any(result["failed"] for result in results.values()))


def run(
    names: list[str], seconds: float, most: int, seed: int, scratch: Path
) -> dict[str, dict[str, Any]]:
    """Run each attack for its share of the time, and print one line about it."""
    results = {}
    end = time.monotonic() + seconds
    for i, name in enumerate(names):
        share = SHARES[name] / sum(SHARES[other] for other in names[i:])
        results[name] = result = one(name, (end - time.monotonic()) * share, most, seed, scratch)
        counts = f"{result['tried']} tried, {result['failed']} failed"
        lines = [f"{name}: {counts}, {result['seconds']:.0f} s"]
        lines += [
            f"  {failure['call']}\n    {failure['outcome']}" for failure in result["failures"]
        ]
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
    return results


def one(name: str, seconds: float, most: int, seed: int, scratch: Path) -> dict[str, Any]:
    """Run one attack: at least one try, then more until the time or the tries are used up."""
    from context import Context, Failure  # these import JAX, which reads the environment

    began = time.monotonic()
    folder = scratch / name
    folder.mkdir()
    context = Context(folder, random.Random(f"{seed} {name}"), dict(os.environ))
    tried = failed = 0
    told: list[dict[str, str]] = []
    with contextlib.closing(importlib.import_module(name).attack(context)) as tries:
        while tried == 0 or (tried < most and time.monotonic() < began + seconds):
            try:
                failure = next(tries, None)
            except Exception:  # an error of the attack itself must not count as a success
                failure = Failure(f"the attack {name}", traceback.format_exc())
                seconds = 0.0
            tried += 1
            if failure is not None:
                failed += 1
                told.append({"call": failure.call, "outcome": failure.outcome})
    spent = time.monotonic() - began
    return {"tried": tried, "failed": failed, "seconds": round(spent, 1), "failures": told[:TOLD]}


def write(path: Path, seconds: float, seed: int, results: dict[str, dict[str, Any]]) -> None:
    """Write the results and the machine on which they were obtained."""
    from nres.files import write_json
    from nres.runs.machine import device, versions

    summary = {"seconds": seconds, "seed": seed, "attacks": results}
    write_json(path, summary | {"device": device(), "versions": versions()})


if __name__ == "__main__":
    sys.exit(main())
