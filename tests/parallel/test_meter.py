"""Memory that is gone was still held, and limits of control groups count."""

from pathlib import Path

import pytest
import torch

from umpteen.parallel import meter as meter_module
from umpteen.parallel.meter import Meter, timed

CPU = torch.device("cpu")


def test_the_peak_remembers_what_is_no_longer_held() -> None:
    meter = Meter(CPU)
    before = meter.settle()
    block = torch.ones(40_000_000)
    del block
    assert meter.peak() - before > 0.9 * 160e6
    assert meter.settle() - before < 0.1 * 160e6
    assert meter.peak() - before < 0.1 * 160e6


def test_work_takes_time() -> None:
    assert timed(lambda: sum(range(10_000)), CPU) > 0


@pytest.mark.parametrize(
    ("line", "folder", "names"),
    [
        ("0::/box/inner", "box/inner", ("memory.max", "memory.current", "inactive_file")),
        (
            "4:memory:/box/inner",
            "memory/box/inner",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
    ],
)
def test_limits_of_control_groups_and_those_above_them_count(
    line: str, folder: str, names: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, used, files = names
    group = tmp_path / "cgroup" / folder
    group.mkdir(parents=True)
    for place, most in ((group, "max" if limit == "memory.max" else "9000000"), (group.parent, "5000000")):
        (place / limit).write_text(f"{most}\n")
        (place / used).write_text("3000000\n")
        (place / "memory.stat").write_text(f"anon 1\n{files} 500000\n")
    (tmp_path / "own").write_text(f"7:cpu:/elsewhere\n{line}\n")
    monkeypatch.setattr(meter_module, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(meter_module, "OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(Meter, "held", lambda self: 0)  # it moves while it is looked at
    assert Meter(CPU).available() == 2_500_000


def test_without_limits_the_machine_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter_module, "OWN_CGROUPS", tmp_path / "missing")
    meter = Meter(CPU)
    assert meter.available() > meter.held() > 50e6
