"""A table whose backward pass keeps rows and values: the gradients of dense autograd, for the rows that were taken."""

import pytest
import torch
from torch import Tensor

from umpteen.encoders.rows import BLOCK, RowTable, row_tables
from umpteen.parallel.world import Shard, World


def table(rows: int = 7, dimension: int = 4) -> RowTable:
    return RowTable.gaussian(Shard(World(), rows), dimension, seed=1).double()


def gradient_of_dense_autograd(of: RowTable, batches: list[list[int]]) -> Tensor:
    weight = of.weight.detach().clone().requires_grad_()
    for number, rows in enumerate(batches, 1):
        (weight[rows].sin() * number).sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    return weight.grad


@pytest.mark.parametrize(
    "batches", [[[0, 1, 2]], [[5, 2], [3, 0]], [[2, 2, 6]], [[1, 4], [4, 1], [0]], [[3], []]], ids=str
)
def test_the_gradient_is_that_of_dense_autograd_and_touches_only_rows_taken(batches: list[list[int]]) -> None:
    ours = table()
    for number, rows in enumerate(batches, 1):
        (ours(torch.tensor(rows, dtype=torch.int64)).sin() * number).sum().backward()  # type: ignore[no-untyped-call]
    theirs = gradient_of_dense_autograd(ours, batches)
    torch.testing.assert_close(ours.dense_gradient(), theirs, rtol=1e-14, atol=1e-14)
    touched = torch.cat([part.rows for part in ours.gradients()]).tolist()
    assert sorted(touched) == sorted({row for rows in batches for row in rows})  # each once, and no others
    torch.testing.assert_close(ours.dense_gradient(), theirs, rtol=1e-14, atol=1e-14)
    assert ours.weight.grad is None
    ours.forget_gradients()
    assert ours.gradients() == [] and not ours.dense_gradient().any()


def test_scaled_gradients_leave_what_autograd_was_given_alone() -> None:
    ours, given = table(), torch.ones(2, 4, dtype=torch.float64)
    ours(torch.tensor([1, 3])).backward(given)  # type: ignore[no-untyped-call]
    ours.scale_gradients(0.5)
    assert ours.dense_gradient()[[1, 3]].eq(0.5).all() and given.eq(1).all()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_random_rows_are_the_same_on_any_number_of_processes(size: int) -> None:
    count = 2 * BLOCK + 5
    whole = RowTable.gaussian(Shard(World(), count), 3, seed=7).weight
    parts = [RowTable.gaussian(Shard(World(rank, size), count), 3, seed=7).weight for rank in range(size)]
    assert torch.equal(torch.cat(parts), whole)
    assert len(torch.unique(whole, dim=0)) == count  # no block repeats another
    assert 0.9 < float(whole.detach().square().sum(1).mean()) < 1.1
    assert not torch.equal(whole, RowTable.gaussian(Shard(World(), count), 3, seed=8).weight)


def test_a_process_gives_its_own_rows_by_their_number_in_the_whole_table_and_no_others() -> None:
    shard = Shard(World(1, 3), 10)  # rows 3, 4, 5
    part = RowTable(torch.arange(6.0).view(3, 2), shard)
    assert part(torch.tensor([5, 3])).tolist() == [[4, 5], [0, 1]]
    assert part.count == 10
    for row in (2, 6):
        with pytest.raises(IndexError):
            part(torch.tensor([row]))


def test_rows_are_carried_over_into_another_order_and_new_ones_start_anew() -> None:
    old = RowTable(torch.arange(6.0).view(3, 2))
    moved = old.rearranged(torch.tensor([2, -1, 0]), RowTable(torch.full((3, 2), 9.0)))
    assert moved.weight.tolist() == [[4, 5], [9, 9], [0, 1]]


def test_tables_are_found_by_the_name_of_their_weight() -> None:
    model = torch.nn.ModuleDict({"inner": torch.nn.ModuleDict({"rows": table()})})
    assert list(row_tables(model)) == ["inner.rows.weight"] and "inner.rows.weight" in model.state_dict()
    assert list(row_tables(table())) == ["weight"]
