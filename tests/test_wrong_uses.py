"""Wrong uses of the Python API end in one sentence that names the culprit."""

import jaxtyping
import pytest

import wrong_uses
from helpers import as_users_run


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The errors of all cases, without the tests' type checker, which would raise its own."""
    folder = tmp_path_factory.mktemp("wrong")
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.MonkeyPatch.context() as patch, as_users_run():
            patch.chdir(folder)
            found = {"calls": wrong_uses.outcomes(), "commands": wrong_uses.command_outcomes()}
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
    assert list(folder.iterdir()) == []  # nothing was begun
    return found


@pytest.mark.parametrize("case", wrong_uses.CASES)
def test_wrong_uses(case, outcomes):
    _, kind, *words = wrong_uses.CASES[case]
    found, message = outcomes["calls"][case]
    assert found == kind, message
    for word in words:
        assert word in message
    assert "\n" not in message
    assert len(message) < 400


@pytest.mark.parametrize("number", range(len(wrong_uses.COMMANDS)))
def test_extreme_options_are_refused_in_one_sentence(number, outcomes):
    _, *words = wrong_uses.COMMANDS[number]
    status, stderr, kind = outcomes["commands"][number]
    for word in words:
        assert word in stderr
    assert (status, kind) in ((1, "SystemExit"), (2, "SystemExit"))
    if "Usage:" not in stderr:  # an option that was refused before any command
        assert len(stderr.strip().splitlines()) == 1
        assert len(stderr) < 500
