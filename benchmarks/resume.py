"""Check that a run that is killed and resumed equals an undisturbed run, bit for bit.

python benchmarks/resume.py
"""

import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from nres import runs

SETTINGS = ["--updates", "40001", "--eval-every", "5000", "--checkpoint-seconds", "0.05"]


def main() -> None:
    chance = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder) / "whole", Path(folder) / "killed"
        train = [sys.executable, "-m", "nres", "train", "lorenz", *SETTINGS, "--quiet", "--out"]
        subprocess.run([*train, str(whole)], check=True)
        kills, command = 0, [*train, str(killed)]
        while True:
            process = subprocess.Popen(command)
            metrics = killed / "metrics.jsonl"
            while kills < 4 and process.poll() is None:
                if metrics.exists() and metrics.read_text().count("\n") > 1:
                    time.sleep(chance.uniform(0, 1.0))
                    process.send_signal(signal.SIGKILL)
                    kills += 1
                    break
                time.sleep(0.01)
            if process.wait() == 0:
                break
            command = [sys.executable, "-m", "nres", "resume", str(killed), "--quiet"]
        one, other = runs.Run.open(whole), runs.Run.open(killed)
        same_theta = np.asarray(one.theta()).tobytes() == np.asarray(other.theta()).tobytes()
        same_loss = one.metrics["loss"].tobytes() == other.metrics["loss"].tobytes()
    print(f"{kills} kills; same theta: {same_theta}; same losses: {same_loss}")
    sys.exit(not (same_theta and same_loss))


if __name__ == "__main__":
    main()
