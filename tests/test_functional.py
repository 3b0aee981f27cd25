"""The losses on plain tensors are their formulas, whatever form positives come in; the cache changes no gradient."""

import gc
import re
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array, csr_matrix
from torch import Tensor, nn

from reference import Pair, Problem, decoupled_softmax, one_vs_all, soft_top_k, softmax
from test_docs import ROOT, Block, blocks_of
from umpteen import functional
from umpteen.errors import BadInput

# name → (ours, the judge)
LOSSES: dict[str, tuple[Callable[..., Tensor], Callable[[Problem], Tensor]]] = {
    "softmax": (functional.softmax, softmax),
    "decoupled_softmax": (functional.decoupled_softmax, decoupled_softmax),
    "soft_top_k": (partial(functional.soft_top_k, k=3), lambda problem: soft_top_k(problem, 3, 2.0)),
    "soft_top_positives": (
        partial(functional.soft_top_k, k="positives", alpha=1.5),
        lambda problem: soft_top_k(problem, "positives", 1.5),
    ),
    "bce": (functional.bce, one_vs_all),
}
QUERIES, LABELS = 5, 19
LISTS = [[3, 7, 18], [0], [], [4, 3], [9, 1, 2, 3]]
PAIRS = [(query, label) for query, labels in enumerate(LISTS) for label in labels]
MATRIX = np.zeros((QUERIES, LABELS), dtype=np.float32)
MATRIX[tuple(zip(*PAIRS, strict=True))] = 1

FORMS: dict[str, Any] = {
    "lists": LISTS,
    "tuples": tuple(tuple(labels) for labels in LISTS),
    "scipy's CSR": csr_matrix(MATRIX),
    "scipy's COO": coo_array(MATRIX),
    "torch's CSR": torch.from_numpy(MATRIX).to_sparse_coo(),
    "mask": torch.from_numpy(MATRIX) > 0,
    "numpy's mask": MATRIX > 0,
    "floats": torch.from_numpy(MATRIX),
    "pairs": torch.tensor(PAIRS),
    "two vectors": tuple(torch.tensor(PAIRS).unbind(1)),
}

every_loss = pytest.mark.parametrize("loss", LOSSES)


def vectors(count: int, seed: int) -> Tensor:
    return torch.randn(count, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def assert_same(loss: str, positives: Any, problem: Problem, **options: Any) -> None:
    ours, judge = LOSSES[loss]
    sides = [problem.queries, problem.labels]
    found, expected = ours(*sides, positives, **options), judge(problem)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(torch.autograd.grad(found, sides), torch.autograd.grad(expected, sides), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
@every_loss
def test_every_loss_equals_its_formula_in_value_and_gradient_for_every_form_of_positives(loss: str, form: str) -> None:
    problem = Problem(vectors(QUERIES, 0), vectors(LABELS, 1), list(PAIRS), temperature=0.5)
    assert_same(loss, FORMS[form], problem, temperature=0.5)


@every_loss
def test_options_are_those_of_the_formula(loss: str) -> None:
    unpulled: list[Pair] = [(0, 5), (2, 6)]
    filtered: list[Pair] = [(1, 2), (4, 9), (3, 11)]
    options: dict[str, Any] = {"relevant": torch.tensor(unpulled), "filtered": torch.tensor(filtered)}
    problem = Problem(vectors(QUERIES, 2), vectors(LABELS, 3), list(PAIRS), unpulled, filtered)
    if loss != "bce":
        problem.reduction = options["reduction"] = "sum"
    assert_same(loss, LISTS, problem, **options)


@every_loss
def test_values_of_a_sparse_matrix_weigh_the_positives(loss: str) -> None:
    weights = [0.5 + place for place in range(len(PAIRS))]
    rows, columns = zip(*PAIRS, strict=True)
    weighed = coo_array((np.array(weights), (rows, columns)), shape=(QUERIES, LABELS))
    assert_same(loss, weighed, Problem(vectors(QUERIES, 4), vectors(LABELS, 5), list(PAIRS), weights=weights))


@pytest.mark.parametrize(
    ("positives", "problem"),
    [
        ([[1], [2]], "positives of 2 queries were given for 5; give each query a list"),
        (torch.ones(5, 3, dtype=torch.bool), r"shape \(5, 3\); queries × labels is \(5, 19\)"),
        (torch.ones(5, 19, dtype=torch.int64), r"neither pairs \[p, 2\] nor a mask; .*\.bool\(\)"),
        ([[99], [], [], [], []], "a pair names label 99"),
        (torch.tensor([[7, 0]]), "a query outside the batch of 5"),
        ((torch.tensor([0, 1]), torch.tensor([2])), r"vectors of shapes \(2,\) and \(1,\); give two of one length"),
    ],
)
def test_positives_that_fit_no_query_or_label_are_refused(positives: Any, problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        functional.decoupled_softmax(vectors(QUERIES, 0), vectors(LABELS, 1), positives)


@pytest.mark.parametrize("k", [LABELS, LABELS + 1, 0, -1])
def test_a_fixed_k_that_has_no_threshold_is_refused(k: int) -> None:
    with pytest.raises(BadInput, match=f"k is {k}, and there are 19 labels"):
        functional.soft_top_k(vectors(QUERIES, 0), vectors(LABELS, 1), LISTS, k)


@pytest.mark.parametrize("kind", [torch.int16, torch.uint8])
def test_a_k_for_each_query_may_be_whole_numbers_of_any_kind(kind: torch.dtype) -> None:
    k = torch.tensor([1, 2, 3, 4, 5])
    given = vectors(QUERIES, 0), vectors(LABELS, 1), LISTS
    assert torch.equal(functional.soft_top_k(*given, k.to(kind)), functional.soft_top_k(*given, k))


@every_loss
@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_inside_autocast_a_loss_and_its_gradients_are_what_they_are_outside(loss: str, precision: torch.dtype) -> None:
    def computed() -> list[Tensor]:
        sides = [vectors(count, seed).detach().float().requires_grad_() for count, seed in ((QUERIES, 0), (LABELS, 1))]
        found = LOSSES[loss][0](*sides, LISTS)
        found.backward()  # type: ignore[no-untyped-call]
        return [found, *(side.grad for side in sides if side.grad is not None)]

    with torch.autocast("cpu", precision):
        inside = computed()
    assert len(inside) == 3
    for ours, theirs in zip(inside, computed(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


class Net(nn.Module):
    """Two layers with dropout between; remembers what it computed."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = nn.ModuleList([nn.Linear(6, 8, dtype=torch.float64), nn.Linear(8, 4, dtype=torch.float64)])
        self.computed: list[weakref.ref[Tensor]] = []

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = nn.functional.dropout(self.layers[0](inputs).tanh(), 0.3)
        self.computed.append(weakref.ref(hidden))
        return self.layers[1](hidden)


def gradients(net: Net, encode: Callable[[], Tensor]) -> list[Tensor]:
    net.zero_grad()
    torch.manual_seed(5)
    functional.decoupled_softmax(vectors(2, 8)[:, :4], encode(), [[0, 3], [6]], temperature=0.3).backward()
    return [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("size", [1, 2, 3, 6, 7, 100])
def test_the_cache_gives_the_weights_the_gradient_of_the_plain_backward_dropout_included(size: int) -> None:
    net, inputs = Net(), vectors(7, 6).detach()
    plain = gradients(net, lambda: torch.cat([net(chunk) for chunk in inputs.split(size)]))
    cached = gradients(net, lambda: functional.gradient_cache(net, inputs, size))
    assert len(plain) == 4
    for ours, theirs in zip(cached, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-14)


def test_the_cache_takes_lists_and_mappings_and_carries_gradients_to_inputs_too() -> None:
    net, inputs = Net().eval(), vectors(7, 7)
    texts = [f"text {row}" for row in range(7)]
    table = dict(zip(texts, inputs, strict=True))
    torch.manual_seed(1)
    by_name = functional.gradient_cache(
        lambda part: net(part["ids"]) + part["shift"], {"shift": 2.0, "ids": inputs, "texts": texts}, 3
    )
    torch.manual_seed(1)
    by_list = functional.gradient_cache(lambda part: net(torch.stack([table[text] for text in part])) + 2, texts, 3)
    torch.testing.assert_close(by_name, by_list, rtol=0, atol=0)
    (one,), (other,) = (torch.autograd.grad(found.sin().sum(), [inputs]) for found in (by_name, by_list))
    torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-14)
    assert one.abs().min() > 0


def test_between_the_passes_the_cache_keeps_nothing_that_the_encoder_computed() -> None:
    net, inputs = Net(), vectors(6, 9).detach()
    kept = functional.gradient_cache(net, inputs, 2)
    gc.collect()
    assert len(net.computed) == 3 and all(hidden() is None for hidden in net.computed)
    kept.sum().backward()
    assert len(net.computed) == 6


PAGE = ROOT / "docs" / "reference" / "losses.md"
EXAMPLES = [block for block in blocks_of(PAGE) if block.language == "python"]


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_every_example_of_the_page_runs_on_its_own(example: Block) -> None:
    torch.manual_seed(0)
    exec(compile(example.text, str(example), "exec"), {})


def test_everything_here_is_described_under_the_same_headings() -> None:
    described = re.findall(r"^(##+) (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.M)
    names = [heading for level, heading in described if level == "##"]
    assert sorted(names) == ["bce", "decoupled_softmax", "gradient_cache", "soft_top_k", "softmax"]
    assert all(callable(getattr(functional, name)) for name in names)
    headings = [heading for level, heading in described if level == "###"]
    assert headings == ["Formula", "When to use it", "Arguments", "Example"] * len(names)
    assert len(EXAMPLES) == len(names) + 1


@pytest.mark.parametrize("inputs", [(1, 2), np.ones((3, 2)), {"shift": 2.0}])
def test_inputs_that_cannot_be_divided_are_refused(inputs: Any) -> None:
    with pytest.raises(BadInput, match=r"inputs are a .*; give a tensor, a list, or a mapping"):
        functional.gradient_cache(lambda part: torch.ones(1), inputs, 1)


def test_a_size_below_one_is_refused() -> None:
    with pytest.raises(BadInput, match="size 0 is no number of inputs"):
        functional.gradient_cache(Net(), vectors(3, 0), 0)
