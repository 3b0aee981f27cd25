"""The paper's recipes hold its table of hyper-parameters, and each trains on files in its dataset's format."""

import gzip
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, save_npz

from miniature import command, files_of
from tiny import WORDS, tiny_transformer
from umpteen.config import recipes
from umpteen.model.classifier import Classifier, verify
from umpteen.model.evaluate import evaluate_model
from umpteen.model.train import train

# dataset → max_len, LR, batch_size, dropout, η, τ: the paper's table of hyper-parameters, α being 2 throughout
PAPER = {
    "eurlex-4k": (128, 2e-4, 1024, 0.1, 4096, 0.05),
    "lf-amazontitles-131k": (32, 4e-4, 4096, 0.0, 2048, 0.05),
    "lf-wikipedia-500k": (128, 4e-4, 4096, 0.1, 2048, 1.0),
    "lf-amazontitles-1.3m": (32, 8e-4, 8192, 0.1, 1024, 1.0),
}
VARIANTS = {
    "": ("decoupled_softmax", None, "all"),
    "-softmax": ("softmax", None, "all"),
    "-soft-top-5": ("soft_top_k", 5, "all"),
    "-soft-top-100": ("soft_top_k", 100, "all"),
    "-one-vs-all": ("one_vs_all", None, "all"),
    "-hard-negatives": ("decoupled_softmax", None, "shortlist"),
    "-cache": ("decoupled_softmax", None, "cache"),
    "-classifier": ("one_vs_all", None, "all"),
}
NAMES = [(dataset, ending) for dataset in PAPER for ending in VARIANTS]
LABELS = [f"{first} {second}" for first, second in itertools.permutations(WORDS, 2)][:110]  # SoftTop-100 needs more
TRAIN, TEST = 24, 8


def relevant(query: int) -> list[int]:
    return sorted({(7 * query + 13 * step) % len(LABELS) for step in range(1 + query % 3)})


def title(query: int) -> str:
    return " and ".join(LABELS[label] for label in relevant(query))


def write_eurlex(folder: Path) -> Path:
    """As ELIAS and DEXML lay it out: raw texts, one a line, beside sparse label matrices."""
    (folder / "raw").mkdir(parents=True)
    (folder / "raw" / "Y.txt").write_text("".join(f"{text}\n" for text in LABELS))
    for part, queries in (("trn", range(TRAIN)), ("tst", range(TRAIN, TRAIN + TEST))):
        (folder / "raw" / f"{part}_X.txt").write_text("".join(f"{title(query)}\n" for query in queries))
        matrix = np.zeros((len(queries), len(LABELS)), dtype=np.float32)
        for row, query in enumerate(queries):
            matrix[row, relevant(query)] = 1
        save_npz(folder / f"Y.{part}.npz", csr_array(matrix))
    return folder


def write_lf(folder: Path, *, content: bool) -> Path:
    """As the Extreme Classification Repository offers it: packed JSON lines and pairs to filter."""
    folder.mkdir()

    def write(name: str, records: list[dict[str, object]]) -> None:
        with gzip.open(folder / f"{name}.json.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)

    write("lbl", [{"uid": f"L{row}", "title": text, "content": ""} for row, text in enumerate(LABELS)])
    for part, split, queries in (("trn", "train", range(TRAIN)), ("tst", "test", range(TRAIN, TRAIN + TEST))):
        records = [
            {
                "uid": f"Q{query}",
                "title": title(query),
                "content": "of the library, " * 50 if content else "",  # longer than any model reads
                "target_ind": relevant(query),
                "target_rel": [1.0] * len(relevant(query)),
            }
            for query in queries
        ]
        write(part, records)
        pairs = [
            f"{row} {(relevant(query)[0] + 1) % len(LABELS)}\n" for row, query in enumerate(queries) if row % 4 == 0
        ]
        (folder / f"filter_labels_{split}.txt").write_text("".join(pairs))
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds a random DistilBERT and one miniature in each format."""
    folder = tmp_path_factory.mktemp("recipes")
    tiny_transformer(folder / "distilbert", "distilbert", hidden_size=16, positions=128)
    write_eurlex(folder / "eurlex")
    write_lf(folder / "amazontitles", content=False)
    write_lf(folder / "wikipedia", content=True)
    return folder


def test_the_paper_s_recipes_are_its_four_datasets_times_its_losses_and_pools() -> None:
    shipped = {name for name in recipes.names() if name.startswith(("eurlex-4k", "lf-"))}
    assert shipped == {dataset + ending for dataset, ending in NAMES}


@pytest.mark.parametrize(("dataset", "ending"), NAMES)
def test_a_recipe_holds_the_paper_s_hyper_parameters(dataset: str, ending: str) -> None:
    config = recipes.resolve(dataset + ending)
    tower, objective = config.encoder.query, config.objective
    micro_batch = config.training.token_budget / tower.max_length
    classic = ending == "-classifier"  # whose vectors have whatever length they learn
    assert (*PAPER[dataset][:-1], 1.0 if classic else PAPER[dataset][-1]) == (
        tower.max_length,
        config.optimizer.learning_rate,
        config.training.batch_size,
        tower.dropout,
        micro_batch,
        objective.temperature,
    )
    assert tower.normalise == (objective.temperature != 1)
    assert (tower.kind, tower.start, tower.pooling) == ("transformer", "distilbert-base-uncased", "first")
    label = config.encoder.label_tower
    assert (config.training.epochs, config.optimizer.weight_decay) == (100, 0.01)
    assert config.encoder.towers == ("separate" if classic else "shared")
    assert not classic or (label.kind, label.bias, label.normalise, label.dropout) == ("table", True, False, 0)
    name, k, pool = VARIANTS[ending]
    assert objective.name == name and (k is None or (objective.k, objective.alpha) == (k, 2))
    assert objective.positives_per_query is None
    assert config.pool.name == pool and config.optimizer.clip_norm == 0
    if pool == "shortlist":  # the published code makes it after the sixth epoch, and again every five
        assert (config.pool.shortlist, config.pool.from_epoch, config.pool.refresh_epochs) == (100, 6, 5)


def test_the_shipped_recipes_are_listed_in_groups_of_what_they_are() -> None:
    groups = json.loads(command("recipe", "list", "--json").out)
    assert sorted(name for group in groups.values() for name in group) == recipes.names()
    paper = [dataset + ending for dataset in PAPER for ending in VARIANTS]
    mined = [name for name in paper if name.endswith(("-cache", "-hard-negatives"))]
    classifiers = [name for name in paper if name.endswith("-classifier")]
    assert set(groups["the paper's"]) == {*paper} - {*mined, *classifiers}
    assert set(groups["hard negatives"]) == {*mined}
    more = {"eurlex-titles-classifier", "eurlex-titles-fused", "wordnet-nouns-classifier"}
    assert set(groups["classifier"]) == {*classifiers, *more}
    assert {"static", "wordnet-nouns", "yso-titles"} <= set(groups["static"])
    assert {"mixed", "wordnet-nouns-mixed"} <= set(groups["mixed"])
    assert {"eurlex-titles-minilm", "yso-titles-minilm"} <= set(groups["transformer"])
    lines = command("recipe", "list").out.splitlines()
    assert [line for line in lines if not line.startswith("  ")] == list(groups)
    place = lines.index("mixed")
    assert lines[place + 1].split()[0] == next(iter(groups["mixed"]))
    assert lines[place + 1].endswith(next(iter(groups["mixed"].values())))
    assert all(about.endswith(".") for group in groups.values() for about in group.values())  # none breaks off


@pytest.mark.parametrize(("dataset", "ending"), NAMES)
def test_a_recipe_trains_two_steps_and_saves_a_model(dataset: str, ending: str, home: Path, tmp_path: Path) -> None:
    source = home / dataset.removeprefix("lf-").partition("-")[0]
    only_what_must_be_smaller = (
        f"encoder.query.start={home / 'distilbert'}",
        "training.steps=2",
        "training.threads=1",
        "training.device=cpu",
        *(("pool.from_epoch=1",) if ending == "-hard-negatives" else ()),
    )
    config = recipes.resolve(dataset + ending, only_what_must_be_smaller, str(source))
    classifier = train(config, output=tmp_path / "model")
    course = [json.loads(line) for line in (files_of(tmp_path / "model") / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in course if "loss" in record] == [1, 2]
    assert all(math.isfinite(record["loss"]) and record["gradient_norm"] > 0 for record in course if "loss" in record)
    assert classifier.report is not None and all(map(math.isfinite, classifier.report.metrics.values()))
    assert classifier.report.propensity == {"A": config.evaluation.propensity_a, "B": config.evaluation.propensity_b}
    assert verify(tmp_path / "model") == []
    assert torch.isfinite(Classifier.load(tmp_path / "model").vectors).all()
    assert len(classifier.predict(["the law"], 100)[0]) == 100


@pytest.mark.parametrize("source", ["eurlex", "amazontitles", "wikipedia"])
def test_a_model_is_judged_on_the_format_it_was_trained_on(source: str, home: Path, tmp_path: Path) -> None:
    from umpteen.data.dataset import open_dataset

    overrides = (f"encoder.query.start={home / 'distilbert'}", "training.steps=1", "training.threads=1")
    classifier = train(
        recipes.resolve("lf-amazontitles-131k", overrides, str(home / source)), output=tmp_path / "model"
    )
    report, ranking = evaluate_model(classifier, open_dataset(home / source))
    assert report.queries == TEST and all(map(math.isfinite, report.metrics.values()))
    assert ranking.rows.shape == (TEST, 100)


def test_data_of_a_recipe_s_name_does_not_hide_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wordnet-nouns").mkdir()
    monkeypatch.chdir(tmp_path)
    assert recipes.path_of("wordnet-nouns").parent == recipes.FOLDER
