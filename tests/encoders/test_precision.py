"""Half precisions are tried in a child process before they can kill the run."""

import subprocess
from collections.abc import Iterator

import pytest

from umpteen.encoders import backbone as precision
from umpteen.errors import BadConfig


@pytest.fixture(autouse=True)
def forgotten_outcomes() -> Iterator[None]:
    precision.probe.cache_clear()
    yield
    precision.probe.cache_clear()


def _child(monkeypatch: pytest.MonkeyPatch, code: int, stderr: str = "") -> list[list[str]]:
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, code, "", stderr)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_float32_is_never_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = _child(monkeypatch, -4)
    precision.require("float32", "cpu")
    assert commands == []


def test_a_killed_trial_is_reported_with_its_signal_and_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    _child(monkeypatch, -4)
    with pytest.raises(BadConfig, match=r"killed by signal 4.*ONEDNN_MAX_CPU_ISA"):
        precision.require("bfloat16", "cpu")


def test_a_failed_trial_is_reported_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    _child(monkeypatch, 1, "Traceback\nRuntimeError: no half here")
    with pytest.raises(BadConfig, match="RuntimeError: no half here"):
        precision.require("float16", "cpu")


def test_a_trial_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = _child(monkeypatch, 0)
    for _ in range(3):
        precision.require("bfloat16", "cpu")
    assert len(commands) == 1


def test_the_real_trial_ends_in_a_yes_or_a_reason() -> None:
    outcome = precision.probe("bfloat16")
    assert outcome is None or "child process" in outcome
