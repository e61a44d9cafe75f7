"""Install a wheel into an empty environment, and run the commands of the README there.

python tools/check_wheel.py WHEEL [--constraints FILE]
"""

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

COMMANDS = (
    "nres --version",
    "nres demo",
    "nres train lorenz --updates 200 --out first",
    "nres resume first --updates 300",
    "nres compare lorenz --methods nres,pes --updates 100 --seeds 1 --out compared",
    "nres report compared -o report.html",
    "nres advise lorenz --total-steps 1e7 --sequential-steps 2e5",
    "nres reproduce lorenz-surface",
    "nres export celo2 --to torch --out mine.py",
)
FILES = (
    "first/config.json",
    "report.html",
    "demo.png",
    "mine.safetensors",
    "results/lorenz-surface/lorenz-surface.png",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--constraints", default="none", help="versions to install, or none")
    arguments = parser.parse_args()
    wheel = arguments.wheel.absolute()
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB")
    versions = [] if arguments.constraints == "none" else ["--constraint", arguments.constraints]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        scripts = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
        venv.create(folder / "env", with_pip=True)
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([scripts / "python", *install, *versions, wheel], check=True)
        empty = folder / "empty"
        empty.mkdir()
        # No variable may lead back to the repository.
        environment = {n: v for n, v in os.environ.items() if not n.startswith("PYTHON")}
        environment |= {"COLUMNS": "80", "XDG_STATE_HOME": str(folder / "state")}
        for command in COMMANDS:
            print(f"$ {command}", flush=True)
            name, *rest = command.split()
            subprocess.run([scripts / name, *rest], cwd=empty, env=environment, check=True)
        missing = [name for name in FILES if not (empty / name).exists()]
        if missing:
            sys.exit(f"the commands did not write {', '.join(missing)}.")


if __name__ == "__main__":
    main()
