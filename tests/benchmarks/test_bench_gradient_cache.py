"""The benchmark of the gradient cache, in miniature: both sides do the same step, and the fit finds its constants."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from benchmarks.__main__ import benchmarks
from benchmarks.formulas import Loss, Step, fit
from benchmarks.gradient_cache import Case, prepare, run
from benchmarks.sides import Measure

from benchmarks import gradient_cache
from miniature import command
from tiny import tiny_transformer
from umpteen.errors import BadInput


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_transformer(tmp_path_factory.mktemp("model"))


def test_the_step_with_a_cache_and_the_one_without_are_the_same_step(model: str) -> None:
    plain, cached = (prepare(Case(model, 40, 6, budget, 0))() for budget in (None, 70))
    assert cached.loss == pytest.approx(plain.loss, rel=1e-5)
    assert cached.gradient_norm == pytest.approx(plain.gradient_norm, rel=1e-4)
    assert plain.seconds > 0 and plain.dimension == 32


class InThisProcess:
    """A side without a process of its own, which would import transformers first."""

    def __init__(self, prepare: Callable[..., Measure], *arguments: Any) -> None:
        self.measure = prepare(*arguments)

    def __enter__(self) -> "InThisProcess":
        return self

    def __exit__(self, *_: object) -> None: ...


def test_the_command_prints_a_row_for_each_batch_and_budget_and_the_fit(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradient_cache, "Side", InThisProcess)
    outcome = command(
        "gradient-cache", "--labels", "40", "--batch", "4", "--token-budget", "80", "--steps", "1",
        "--model", model, "--json", of=benchmarks,
    )  # fmt: skip
    assert outcome.code == 0, outcome
    printed = json.loads(outcome.out)
    plain, cached = printed["results"]
    assert (plain["token_budget"], plain["micro_batches"], plain["time_ratio"]) == (None, 1, 1.0)
    assert (cached["token_budget"], cached["micro_batches"], cached["micro_batch_tokens"]) == (80, 6, 80)
    assert {"batch", "labels", "extra_memory_gb", "seconds_per_step", "time_ratio", "memory_ratio"} <= cached.keys()
    assert cached["max_relative_error"] < 1e-4 and cached["memory_predicted"] >= 0 and cached["time_predicted"] > 0
    assert {"cached", "plain", "bytes_a_vector_number", "seconds_a_billion_products"} <= printed["fit"].keys()


def test_sizes_that_cannot_be_measured_are_refused() -> None:
    with pytest.raises(BadInput, match="at least 5 labels"):
        run(labels=4)


def test_the_fit_finds_the_constants_of_exact_formulas() -> None:
    def step(batch: int, budget: int | None) -> Step:
        vectors, products, tokens = (batch + 2000) * 384, batch * 2000 * 384, (batch + 2000) * 10
        micro, parts = budget or tokens, -(-tokens // (budget or tokens))
        seconds = (3e-4 if budget is None else 4e-4) * tokens + 1e-10 * products + (0.02 * parts if budget else 0)
        return Step(
            budget is not None, vectors, products, tokens, parts, micro, 1e8 + 15e4 * micro + 12 * vectors, seconds
        )

    steps = [step(batch, budget) for batch in (64, 1024) for budget in (None, 512, 2048, 8192)]
    losses = [Loss(n * 384, n * 1024 * 384, 2e7 + 12 * n * 384, 1e-10 * n * 1024 * 384) for n in (16_000, 64_000)]
    found, ratios = fit(steps, losses)
    assert found["bytes_a_vector_number"] == pytest.approx(12)
    assert found["megabytes_of_tiles"] == pytest.approx(20)
    assert found["seconds_a_billion_products"] == pytest.approx(0.1)
    assert found["cached"]["fixed_gb"] == pytest.approx(0.1)
    assert found["cached"]["kilobytes_a_token"] == pytest.approx(150)
    assert found["cached"]["milliseconds_a_token"] == pytest.approx(0.4)
    assert found["cached"]["milliseconds_a_micro_batch"] == pytest.approx(20)
    assert found["plain"]["milliseconds_a_token"] == pytest.approx(0.3)
    assert [value for ratio in ratios for value in ratio] == pytest.approx([1.0] * 16)
    assert found["cached"]["memory_error"] < 1e-9 and found["plain"]["time_error"] < 1e-9
