"""The benchmark of a million labels, in miniature: it measures the real run, on data that is as it says."""

import json
from pathlib import Path

import pytest
from benchmarks.__main__ import benchmarks
from benchmarks.generated import LONGEST, POSITIVES, REPEATED, write_titles
from benchmarks.million import MODEL, Case, measure, products_seconds, run

from miniature import command
from umpteen.data.dataset import open_dataset
from umpteen.data.tokens import tokenise
from umpteen.encoders.folder import TextTokenizer
from umpteen.errors import BadInput


def written(folder: Path, labels: int, seed: int = 0) -> Path:
    write_titles(
        folder, labels=labels, train=40, validation=20, model=MODEL, seed=seed, progress=lambda name, done, total: None
    )
    return folder


def test_generated_titles_are_a_dataset_with_short_texts_and_some_twins(tmp_path: Path) -> None:
    dataset = open_dataset(written(tmp_path / "titles", 1000))
    assert (len(dataset.labels), len(dataset.train), dataset.validation and len(dataset.validation)) == (1000, 40, 20)
    texts = list(dataset.labels.texts)
    assert texts[REPEATED - 1] == texts[(REPEATED - 1) // 2]
    assert 900 < len(set(texts)) <= 1000 - 1000 // REPEATED
    tokens = tokenise(dataset.labels.texts, TextTokenizer.load(MODEL, 128, special_tokens=False))
    assert 4 <= tokens.lengths.mean() <= LONGEST
    assert dataset.train.relevance.pairs == 40 * POSITIVES


def test_generated_titles_follow_from_the_seed(tmp_path: Path) -> None:
    one, same, other = (
        open_dataset(written(tmp_path / name, 50, seed)) for name, seed in (("one", 3), ("same", 3), ("other", 4))
    )
    assert one.fingerprint == same.fingerprint != other.fingerprint


def test_the_run_is_the_real_one_and_its_products_take_turns_with_it(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    row = measure(Case(labels=300, batch=8, steps=2), written(tmp_path / "titles", 300), lambda *it: told.append(it))
    assert row["matmul_multiple"] == row["matmul_multiple"] > 0
    assert row["evaluation_seconds"] > 0 and row["seconds_of_products"] > 0
    assert 0.1 < row["peak_rss_gb"] < 8
    assert told[-1] == ("steps", 3, 3)


def test_each_size_has_a_process_of_its_own() -> None:
    outcome = run([120], batch=8, other_batches=[], steps=1, train=16, evaluated=8)
    assert outcome["memory_spread_gb"] == 0 and outcome["linearity"] == 1
    [row] = outcome["results"]
    assert {"labels", "batch", "seconds_per_step", "matmul_multiple", "peak_rss_gb", "evaluation_seconds"} <= set(row)
    assert (row["labels"], row["batch"]) == (120, 8)
    assert json.loads(json.dumps(outcome)) == outcome


def test_products_work_for_tiles_that_do_not_divide() -> None:
    assert products_seconds(batch=3, labels=5001, dimension=4) > 0


def test_sizes_that_cannot_be_measured_are_refused() -> None:
    with pytest.raises(BadInput, match="1 or more"):
        run([0])
    refused = command("million", "--labels", "3", "--json", of=benchmarks)
    assert refused.code == 2 and "3 labels are too few" in refused.err
