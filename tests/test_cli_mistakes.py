"""Mistakes on the command line give one sentence that names the culprit."""

import pytest

from helpers import invoke


def hosts(coordinator, count, process):
    who = ["--coordinator", coordinator, "--num-processes", count, "--process-id", process]
    return [*who, "--connect-timeout", 1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "lorens"], "lorenz"),
        (["train", "lorenz", "--set", "horizon"], "--set"),
        (["compare", "lorenz", "--methods", "nres,nres"], "--methods"),
        (["compare", "lorenz", "--updates", 3, "--budget-steps", 9], "--budget-steps"),
        (["compare", "lorenz", "--budget-steps", 9], "--budget-steps"),
        (["compare", "lorenz", "--methods", "nres,nope"], "'nope'"),
        (["resume", "nowhere"], "nowhere"),
        (["show", "nowhere"], "nowhere"),
        (["train", "lorenz", "--eval-every", 5, "--keep-every", 12], "keep_every"),
        (["train", "lorenz", "--devices", "9"], "--devices"),
        (["train", "lorenz", "--devices", "some"], "--devices"),
        (["train", "lorenz", "--devices", "7"], "196 or 203"),
        (["train", "swimmer", "--devices", "2"], "swimmer"),
        (["train", "lorenz", "--from", "nowhere.npz"], "--from"),
        (["train", "lorenz", "--process-id", 1], "--coordinator"),
        (["train", "lorenz", "--coordinator", "here"], "--coordinator"),
        (["train", "lorenz", "--coordinator", "h:1"], "--num-processes and --process-id"),
        (["train", "lorenz", *hosts("127.0.0.1:9", 2, 2)], "--process-id"),
        (["train", "lorenz", *hosts("127.0.0.1:9", 2, 1)], "127.0.0.1:9"),
        (["train", "lorenz", *hosts("auto", 2, 1)], "--coordinator auto"),
        (["train", "lorenz", "--coordinator", "auto"], "HOST:PORT"),
        (["train", "swimmer", "--actors", 2], "--actors"),
        (["train", "swimmer", "--ray", "local", "--actors", 0], "actors"),
        (["train", "lorenz", "--ray", "local", "--devices", 2], "--ray"),
        (["train", "swimmer", "--ray", "here"], "'here'"),
        (["train", "swimmer", "--ray", "127.0.0.1:9"], "127.0.0.1:9"),
        (["variance", "lorenz", "--periods", "1,x"], "--periods"),
        (["variance", "lorenz", "--periods", "0"], "--periods"),
        (["variance", "lorenz", "--periods", "150"], "window"),
        (["variance", "lorenz", "--out", "/dev/null/x"], "/dev/null"),
        (["advise", "lorenz", "--total-steps", "inf"], "--total-steps"),
        (["variance", "gymnax:CartPole-v1"], "--sigma"),
        (["variance", "lorenz", "--checkpoints", "nowhere"], "nowhere"),
        (["advise", "lorenz", "--sequential-steps", 10], "2000 steps"),
        (["reproduce", "lorenz-ed"], "lorenz-es"),
        (["reproduce", "lorenz-es", "--tier", "cpu"], "--tier"),
        (["reproduce", "all", "--tier", "tpu"], "--tier"),
        (["reproduce", "table", "--out", "nowhere"], "nowhere"),
        (["data", "--download", "nope"], "'nope'"),
    ],
)
def test_mistakes_are_told_in_a_sentence(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert result.exit_code in (1, 2)
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not isinstance(result.exception, ValueError)
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.parametrize(
    "command",
    [
        "list",
        "train",
        "compare",
        "resume",
        "evaluate",
        "plot",
        "show",
        "demo",
        "render",
        "variance",
        "advise",
        "data",
        "export",
        "report",
    ],
)
def test_every_command_has_an_example(command):
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert f"Example: nres {command}" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "lorenz", "--quiet=yes"], "--quiet"),
        (["train", "lorenz", "--no-quiet"], "--no-quiet"),
        (["compare", "lorenz", "--seeds", 0], "at least 1, got 0"),
        (["train", "lorenz", "--seeds", 0], "at least 1, got 0"),
        (["train", "lorenz", "--seeds", 2, "--coordinator", "here:1"], "--coordinator"),
        (["demo", "--seed", 2**63], "--seed"),
        (["variance", "lorenz", "--samples", 7], "at least 8, got 7"),
    ],
)
def test_wrong_values_of_options_are_refused(arguments, words):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
