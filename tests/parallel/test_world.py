"""What processes say to each other, and how they notice that one of them is gone or different."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import worlds
from umpteen.errors import BadInput, LostProcess
from umpteen.parallel.world import PATIENCE, Shard, World, open_meeting
from worlds import WorldFailed, run_world, try_world

SIZES = (1, 2, 3)


def everything_a_world_can_say(world: World) -> dict[str, object]:
    mine = torch.arange(3, dtype=torch.float64) + 10 * world.rank
    return {
        "sum": world.sum_(mine.clone()).tolist(),
        "largest": world.largest(world.rank, -world.rank),
        "gather": world.gather(mine[None]).tolist(),
        "rows": world.gather_rows(mine[: world.rank], list(range(world.size))).tolist(),
        "objects": world.gather_objects(f"process {world.rank}"),
    }


@pytest.mark.parametrize("size", SIZES)
def test_collectives_give_every_process_the_same(size: int) -> None:
    starts = [10.0 * rank for rank in range(size)]
    assert run_world(size, everything_a_world_can_say) == size * [
        {
            "sum": [sum(starts) + size * column for column in range(3)],
            "largest": (size - 1, 0),
            "gather": [[[start, start + 1, start + 2]] for start in starts],
            "rows": [start + row for rank, start in enumerate(starts) for row in range(rank)],
            "objects": [f"process {rank}" for rank in range(size)],
        }
    ]


THREADS_LEFT = """
from importlib import import_module
from pathlib import Path
from umpteen.parallel.world import join_world
with join_world() as world:
    import_module("torch.distributed.nn.functional")  # as optimizers do, in the midst of a run
    world.wait()
print(*(thread.read_text().strip() for thread in Path("/proc/self/task").glob("*/comm")))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds threads in /proc")
def test_no_thread_of_the_group_outlives_the_world() -> None:
    meeting = open_meeting()
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(meeting.port)}
    shared |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", THREADS_LEFT],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in both:
        left, _ = process.communicate(timeout=600)
        assert process.returncode == 0 and "python" in left and "gloo" not in left


def collected(world: World, count: int) -> list[int] | None:
    shard = Shard(world, count)
    rows = shard.collect(torch.arange(count)[shard.rows])
    return None if rows is None else rows.tolist()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 7])
def test_only_the_first_process_collects_all_rows(size: int, count: int) -> None:
    assert run_world(size, collected, count) == [list(range(count)), *[None] * (size - 1)]


def rows_through_a_shard(world: World, count: int) -> tuple[list[int], list[list[float]]]:
    rows = torch.arange(2 * count, dtype=torch.float64).view(count, 2)
    shard = Shard(world, count)
    assert len(shard) == shard.stop - shard.start == len(rows[shard.rows])
    return [shard.start, shard.stop], shard.gather(rows[shard.rows]).tolist()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [0, 1, 2, 7, 9])
def test_shards_hold_every_row_once_in_order_whatever_divides(size: int, count: int) -> None:
    outcomes = run_world(size, rows_through_a_shard, count)
    edges = [edge for (start, stop), _ in outcomes for edge in (start, stop)]
    assert edges[0] == 0 and edges[-1] == count and edges[1:-1:2] == edges[2::2]
    assert {stop - start for (start, stop), _ in outcomes} <= {count // size, -(-count // size)}
    assert all(rows == [[2.0 * row, 2.0 * row + 1] for row in range(count)] for _, rows in outcomes)


def claims(world: World, odd_one: int, name: str) -> None:
    world.require_same({"data": "1a2b", "version": "1.0"} | ({name: "another"} if world.rank == odd_one else {}))


@pytest.mark.parametrize("name", ["data", "version"])
def test_a_process_with_other_data_or_another_version_is_refused_by_name(name: str) -> None:
    outcomes = try_world(3, claims, 2, name)
    assert all(isinstance(outcome, BadInput) for outcome in outcomes)
    assert {str(outcome).partition(":")[0] for outcome in outcomes} == {f"process 2 has another {name} than process 0"}


def test_processes_that_agree_go_on() -> None:
    assert run_world(2, claims, 5, "data") == [None, None]


def work_into_a_shared_folder(world: World, folder: Path) -> bool:
    with world.first_alone():
        found = (folder / "cache").exists()
        (folder / "cache").touch()
    return found


def test_the_first_process_works_alone_and_the_others_find_its_work(tmp_path: Path) -> None:
    assert run_world(3, work_into_a_shared_folder, tmp_path) == [False, True, True]


def end_suddenly(world: World) -> None:
    world.wait()
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    world.sum_(torch.zeros(4))


def test_a_killed_process_is_noticed_by_all_others_long_before_their_patience_ends() -> None:
    assert PATIENCE.total_seconds() > worlds.PATIENCE  # who only gave up waiting would come too late
    first, killed, last = try_world(3, end_suddenly)
    assert isinstance(killed, WorldFailed) and "-9" in str(killed)
    for outcome in (first, last):
        assert isinstance(outcome, LostProcess)
        assert "--resume" in str(outcome)


def fail_on_one(world: World) -> None:
    if world.rank == 1:
        raise BadInput("only here")
    world.wait()


def test_an_error_on_one_process_ends_all_and_is_the_one_that_is_told() -> None:
    with pytest.raises(BadInput, match="only here"):
        run_world(3, fail_on_one)
    assert run_world(2, everything_a_world_can_say)  # and the processes are fit for the next world


def process_id(world: World) -> int:
    return os.getpid()


def test_processes_serve_many_worlds() -> None:
    assert run_world(2, process_id) == run_world(2, process_id)
