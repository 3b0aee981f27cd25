from pathlib import Path
from typing import Any

import pytest
from contract import assert_contract
from lab.comparison import Outcomes
from lab.experiment import Setup, run
from lab.memorisation import BATCH, DESIGNS, HARD, POOLS, RANDOM, Course, Variant, begin, conclude, recipe
from lab.memorisation_data import BLOCK, made_up_words, random_texts, write_pairs, write_start

from lab import memorisation
from umpteen.data.dataset import open_dataset
from umpteen.encoders.folder import TextTokenizer
from umpteen.errors import BadInput


def test_no_text_comes_twice_and_pair_i_is_query_i_with_label_i(tmp_path: Path) -> None:
    write_pairs(tmp_path / "pairs", made_up_words(500), 1500, 16, seed=1)
    dataset = open_dataset(tmp_path / "pairs", cache=tmp_path / "cache")
    texts = [*dataset.train.texts, *dataset.labels.texts]
    assert len(set(texts)) == len(texts) == 3000
    assert all(len(text.split()) == 16 for text in texts)
    assert [dataset.train.relevance.of(query).tolist() for query in range(1500)] == [[row] for row in range(1500)]
    assert dataset.validation is None and dataset.test is None


def test_texts_follow_from_the_seed_and_are_drawn_block_by_block() -> None:
    words = made_up_words(50)
    first, again, other = (list(random_texts(words, BLOCK + 3, 4, seed)) for seed in ((1, 0), (1, 0), (1, 1)))
    assert first == again != other
    assert len(first) == BLOCK + 3
    assert next(random_texts(words, 10**12, 4, (0, 0)))  # nothing but a block is held


def test_every_word_is_one_token_of_the_model_they_start_from(tmp_path: Path) -> None:
    words = made_up_words(30)
    write_start(tmp_path / "start", words, width=8, layers=1, heads=2, length=16)
    bare = TextTokenizer.load(tmp_path / "start", 18, special_tokens=False)
    assert bare(["w0 w29 w7"]) == [[4, 33, 11]]
    assert TextTokenizer.load(tmp_path / "start", 18, special_tokens=True)(["w0"]) == [[2, 4, 3]]


@pytest.mark.parametrize("encoder", ["static", "static-shared", "transformer"])
def test_the_runs_of_one_number_of_pairs_differ_in_the_pool_alone(encoder: str) -> None:
    design = DESIGNS["tiny"]
    configs = {pool: recipe(design, Variant(encoder, 50, pool), "start", "data", seed=3) for pool in POOLS}
    settings = {pool: config.model_dump() for pool, config in configs.items()}
    pools = {pool: values.pop("pool") for pool, values in settings.items()}
    assert settings[BATCH] == settings[RANDOM] == settings[HARD]
    assert settings[HARD]["encoder"]["towers"] == ("shared" if encoder == "static-shared" else "separate")
    assert [pools[pool]["name"] for pool in (BATCH, RANDOM, HARD)] == ["batch", "random", "shortlist"]
    assert pools[RANDOM]["negatives"] == pools[HARD]["negatives"] == design.courses[encoder].negatives
    assert pools[HARD]["shortlist"] == 20
    assert settings[BATCH]["data"]["fit_on"] == "train+validation"  # nothing is held out, nothing is chosen


def test_the_tiny_experiment_runs_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup("memorisation", "tiny", tmp_path / "out", seeds=1)
    build, built = memorisation.build_run, []

    def counted(config: Any, **given: Any) -> Any:
        built.append(config)
        if len(built) == 4:
            raise KeyboardInterrupt
        return build(config, **given)

    monkeypatch.setattr(memorisation, "build_run", counted)
    with pytest.raises(KeyboardInterrupt):
        run(begin, setup)
    results = run(begin, setup)
    assert len(built) == 13  # twelve variants, of which the fourth was tried twice
    by_variant = {row["variant"]: row for row in results["results"]}
    assert len(by_variant) == 12
    batch, random, hard = (by_variant[str(Variant("static", 200, pool))] for pool in POOLS)
    assert batch["labels_in_play"]["mean"] <= 32 < random["labels_in_play"]["mean"]
    assert 32 < hard["labels_in_play"]["mean"] <= 160
    assert all(0 <= row["P@1"]["mean"] <= 100 for row in by_variant.values())
    assert_contract("memorisation", tmp_path / "out", results)
    assert not any((tmp_path / "out" / "work").iterdir())


def outcomes(values: dict[str, list[float]]) -> Outcomes:
    rest = {"R@10": 100.0, "labels_in_play": 1.0, "processor_seconds": 1.0}
    return Outcomes(
        {"variant": str(Variant("static", pairs, pool)), "seed": seed, "P@1": value - (pairs == 100), **rest}
        for pool, some in values.items()
        for seed, value in enumerate(some)
        for pairs in (100, 200)
    )


def test_the_largest_number_of_pairs_decides() -> None:
    courses = {"static": Course((100, 200), 8, 1, 0.1)}
    found = conclude(courses, outcomes({BATCH: [80.0, 82.0], RANDOM: [90.0, 99.0], HARD: [99.9, 99.8]}))
    verdicts = [claim.verdict for claim in found.claims]
    assert verdicts == ["confirmed", "undecided", "confirmed"]
    assert "at 200 pairs (static)" in found.claims[0].claim
    assert "81.0 %" in found.summary and "100 pairs 80.0 %" in found.summary
    assert conclude(courses, outcomes({BATCH: [99.0], RANDOM: [99.0], HARD: [99.0]})).claims[0].verdict == "undecided"


def test_what_it_does_not_take_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="makes its own data"):
        begin(Setup("memorisation", "tiny", tmp_path, source="wordnet-nouns"))
    with pytest.raises(BadInput, match="--encoder gpt: known are static, static-shared, transformer"):
        begin(Setup("memorisation", "tiny", tmp_path, encoder="gpt"))
    with pytest.raises(BadInput, match="only generation takes a language model"):
        Setup("memorisation", "tiny", tmp_path, model="x")
