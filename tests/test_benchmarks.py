"""The benchmarks run: their numbers are another matter."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.scripts
ROOT = Path(__file__).parent.parent


def run(name, out):
    command = [sys.executable, f"benchmarks/{name}.py", "--quick", "--out", str(out)]
    subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)


def test_throughput_memory_and_cost(tmp_path):
    run("run", tmp_path)
    results = json.loads((tmp_path / "cpu.json").read_text())
    assert {"nres", "floor"} <= {row["implementation"] for row in results["throughput"]}
    assert results["memory"][0]["peak_bytes"] > 0
    assert {"NRES", "BPTT"} <= {row["method"] for row in results["cost"]}
    assert results["display"]["plain"] > 0
    assert results["startup_seconds"]["total"] > 0


def test_simulators(tmp_path):
    run("simulators", tmp_path)
    results = json.loads((tmp_path / "simulators.json").read_text())
    assert [row["task"] for row in results["simulators"]] == ["swimmer", "halfcheetah"]


def test_theory(tmp_path):
    run("theory", tmp_path)
    results = json.loads((tmp_path / "theory.json").read_text())
    assert set(results["theory"]) == {"at the start", "near the truth"}
    assert len(results["hysteresis"]) == 2
    assert (tmp_path / "figure.png").exists()


def test_scaling(tmp_path):
    run("scaling", tmp_path)
    rows = json.loads((tmp_path / "scaling.json").read_text())["devices"]
    assert [row["devices"] for row in rows] == [1, 2]


def test_cluster(tmp_path):
    run("cluster", tmp_path)
    rows = json.loads((tmp_path / "cluster.json").read_text())["rows"]
    for row in rows:
        phases = list(row.values())[5:-2]
        assert min(phases) >= 0
        assert abs(sum(phases) - row["seconds"]) < 1e-9
    assert (tmp_path / "cluster.png").exists()


def test_learned_optimizers(tmp_path):
    run("learned_optimizer", tmp_path)
    results = json.loads((tmp_path / "learned_optimizer_cpu.json").read_text())
    assert {row["implementation"] for row in results["rows"]} == {"nres", "plain JAX"}


def test_meta_training(tmp_path):
    run("meta_training", tmp_path)
    (row,) = json.loads((tmp_path / "meta_training_cpu.json").read_text())["meta_training"]
    assert row["optimizer"] == "Celo2"
    assert row["of_bare"] > 0


def test_large_models(tmp_path):
    run("large_models", tmp_path)
    (row,) = json.loads((tmp_path / "large_models_cpu.json").read_text())["large_models"]
    assert row["of inference"] > 0
