"""The verbs of the command line, from training to answers, on a miniature."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from safetensors.torch import load_file

from answers import same_numbers
from miniature import KEYS, LABELS, command, files_of, trained, write_miniature, write_recipe
from umpteen import __version__
from umpteen.config.recipes import names
from umpteen.model.classifier import Classifier

UMPTEEN = Path(sys.executable).with_name("umpteen")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds data, start, recipe.toml and the model trained from them."""
    home = tmp_path_factory.mktemp("miniature")
    trained(home)
    return home


def test_training_leaves_a_model_that_learnt_and_nothing_else(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {"data", "start", "recipe.toml", "model"}
    written = {"encoder", "labels.db", "vectors.safetensors", "report.json", "recipe.toml"}
    assert written <= {path.name for path in files_of(folder / "model").iterdir()}
    course = [json.loads(line) for line in (files_of(folder / "model") / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in course if "loss" in record]
    assert len(losses) == 12 and losses[-1] < losses[0]
    assert max(record["metrics"]["nDCG@5"] for record in course if "metrics" in record) > 90


def test_the_same_recipe_and_seed_give_the_same_model_to_the_bit(folder: Path, tmp_path: Path) -> None:
    assert command("train", folder / "recipe.toml", "--output", tmp_path / "again", "--quiet").code == 0
    for name in ("vectors.safetensors", "encoder/query/0_StaticEmbedding/model.safetensors"):
        assert (files_of(tmp_path / "again") / name).read_bytes() == (files_of(folder / "model") / name).read_bytes()


def test_the_saved_recipe_trains_again(folder: Path, tmp_path: Path) -> None:
    saved = files_of(folder / "model") / "recipe.toml"
    assert command("train", saved, "--output", tmp_path / "again", "--set", "training.steps=1", "--quiet").code == 0


@pytest.mark.parametrize(
    "changes",
    [
        ("encoder.towers=shared", "encoder.query.kind=transformer", "encoder.query.pooling=first"),
        ("encoder.query.kind=transformer", "encoder.label.kind=static"),
        ("encoder.label.kind=transformer", "encoder.query.bigrams=64"),
        ("data.fit_on=train+validation", "objective.name=soft_top_k", "objective.k=positives"),
        ("objective.name=one_vs_all", "objective.positives_per_query=1"),
    ],
)
def test_towers_and_objectives_of_every_kind_train(changes: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    same = (f"encoder.label.start={folder / 'start'}", "encoder.label.max_length=16")
    overrides = [*changes, "training.steps=2", *(same if any("label" in change for change in changes) else ())]
    options = [part for override in overrides for part in ("--set", override)]
    outcome = command("train", folder / "recipe.toml", "--output", tmp_path / "model", *options)
    assert outcome.code == 0, outcome.err
    assert command("predict", tmp_path / "model", "law of fish", "--json").code == 0


def test_a_run_that_is_complete_is_resumed_by_doing_nothing(folder: Path) -> None:
    before = (folder / "model" / "manifest.json").stat().st_mtime_ns
    outcome = command("train", folder / "recipe.toml", "--output", folder / "model", "--resume")
    assert outcome.code == 0 and "complete" in outcome.err
    assert (folder / "model" / "manifest.json").stat().st_mtime_ns == before


def test_evaluate_gives_machines_percentages_with_intervals(folder: Path) -> None:
    outcome = command("evaluate", folder / "model", folder / "data", "--json")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert {f"{name}@{k}" for name in ("P", "nDCG", "R", "PSP", "PSnDCG") for k in (1, 3, 5, 10)} == set(
        found["metrics"]
    )
    assert set(found["intervals"]) == set(found["metrics"])
    for name, value in found["metrics"].items():
        low, high = found["intervals"][name]
        assert 0 <= low <= value <= high <= 100
    assert found["metrics"]["P@1"] > 50 and found["metrics"]["R@10"] > 99
    assert found["propensity"] == {"A": 0.55, "B": 1.5}
    assert (found["split"], found["queries"]) == ("test", 20)


def test_evaluate_gives_people_a_table_and_says_its_constants(folder: Path) -> None:
    options = ("--at", "2", "--propensity", "0.6", "2.6", "--split", "train")
    outcome = command("evaluate", folder / "model", folder / "data", *options)
    assert outcome.code == 0
    assert "PSnDCG@2" in outcome.out and "P@1 " not in outcome.out
    assert "60 queries" in outcome.out and "A 0.6, B 2.6" in outcome.out


def test_predictions_are_saved_as_scipy_csr_without_filtered_pairs(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "predictions.npz"
    outcome = command("evaluate", folder / "model", folder / "data", "--at", "5", "--predictions", file, "--json")
    assert outcome.code == 0
    matrix = scipy.sparse.load_npz(file).tocsr()
    assert matrix.shape == (20, len(LABELS)) and set(np.diff(matrix.indptr).tolist()) == {5}
    queries = [json.loads(line) for line in (folder / "data" / "test.jsonl").read_text().splitlines()]
    ignored = [(row, KEYS.index(key)) for row, query in enumerate(queries) for key in query["ignore"]]
    assert ignored and all(label not in matrix[[row]].indices for row, label in ignored)


def test_labels_are_matched_by_key_whatever_their_order(folder: Path, tmp_path: Path) -> None:
    data = write_miniature(tmp_path / "turned", labels=list(reversed(range(len(LABELS)))))
    assert (data / "test.jsonl").read_text() == (folder / "data" / "test.jsonl").read_text()
    turned, straight = (
        json.loads(command("evaluate", folder / "model", source, "--json").out) for source in (data, folder / "data")
    )
    assert turned["metrics"] == straight["metrics"] and turned["intervals"] == straight["intervals"]


def test_a_model_is_not_judged_on_labels_it_does_not_know(folder: Path, tmp_path: Path) -> None:
    data = write_miniature(tmp_path / "other")
    labels = (data / "labels.jsonl").read_text()
    (data / "labels.jsonl").write_text(labels + '{"key": "new", "text": "a new label"}\n')
    outcome = command("evaluate", folder / "model", data)
    assert outcome.code == 2 and "'new'" in outcome.err and "--from" in outcome.err


def test_going_on_warns_of_validation_texts_that_the_model_knows(folder: Path, tmp_path: Path) -> None:
    given = ("train", folder / "recipe.toml", "--from", folder / "model", "--set", "training.steps=1")
    told = {seed: command(*given, "--set", f"seed={seed}", "--output", tmp_path / str(seed)).err for seed in (0, 5)}
    assert "was trained on texts that are validation here" in told[5] and "validation here" not in told[0]


def test_a_trained_model_starts_a_run_on_more_labels(tmp_path: Path) -> None:
    few, every = write_miniature(tmp_path / "few", labels=range(6)), write_miniature(tmp_path / "every")
    recipe, first = write_recipe(tmp_path), tmp_path / "first"
    assert command("train", recipe, "--data", few, "--output", first, "--quiet").code == 0
    options = ("--data", every, "--from", first, "--set", "training.steps=1", "--quiet")
    tiny_rate = ("--set", "optimizer.learning_rate=1e-30", "--set", "optimizer.weight_decay=0")
    outcome = command("train", recipe, "--output", tmp_path / "more", *options, *tiny_rate)
    assert outcome.code == 0, outcome.err
    more = Classifier.load(tmp_path / "more")
    assert list(more.labels.keys) == KEYS
    # With a learning rate of nothing, the new run is where the old one ended: same towers, new vectors for new labels.
    old, new = (load_file(files_of(path) / "vectors.safetensors")["vectors"] for path in (first, tmp_path / "more"))
    np.testing.assert_allclose(new[:6], old, atol=1e-6)


def test_predict_answers_arguments_for_people(folder: Path) -> None:
    outcome = command("predict", folder / "model", "a law of fish", "dog of tree", "--k", "3")
    lines = outcome.out.splitlines()
    assert outcome.code == 0 and len(lines) == 8
    assert lines[0] == "a law of fish" and "law of fish  [key-law-fish]" in lines[1]
    assert lines[4] == "dog of tree" and "dog of tree  [key-dog-tree]" in lines[5]


def test_predict_answers_lines_of_stdin_with_one_json_object_each(folder: Path) -> None:
    texts = ["tax in trade", "図書館 — library and book"]
    outcome = command("predict", folder / "model", "--json", "--k", "2", stdin="\n".join(texts) + "\n")
    answers = [json.loads(line) for line in outcome.out.splitlines()]
    assert [answer["text"] for answer in answers] == texts
    assert [answer["labels"][0]["key"] for answer in answers] == ["key-tax-trade", "key-library-book"]
    for answer in answers:
        assert [set(label) for label in answer["labels"]] == [{"key", "text", "score"}] * 2
        assert answer["labels"][0]["score"] >= answer["labels"][1]["score"]


def test_the_command_line_and_python_give_the_same_answers(folder: Path) -> None:
    import umpteen

    (found,) = umpteen.Classifier.load(folder / "model").predict(["tax in trade"], k=4)
    (answer,) = (
        json.loads(line) for line in command("predict", folder / "model", "tax in trade", "--json").out.splitlines()
    )
    same_numbers(
        [(label["key"], label["text"], label["score"]) for label in answer["labels"][:4]],
        [(label.key, label.text, label.score) for label in found],
    )


def test_verify_says_that_a_whole_model_is_whole(folder: Path) -> None:
    outcome = command("verify", folder / "model")
    assert outcome.code == 0 and "is whole" in outcome.out


def test_every_recipe_is_listed_with_a_line_about_it() -> None:
    lines = [line for line in command("recipe", "list").out.splitlines() if line.startswith("  ")]
    assert sorted(line.split()[0] for line in lines) == names()  # each once, below the name of its group
    assert all(len(line.split()) > 4 for line in lines)


def test_a_shown_recipe_is_complete_and_takes_overrides(tmp_path: Path) -> None:
    shown = command("recipe", "show", "lf-wikipedia-500k-softmax", "--set", "training.epochs=3").out
    settings = tomllib.loads(shown)
    assert shown.startswith("# The paper's LF-Wikipedia-500K with softmax")
    assert (settings["training"]["epochs"], settings["training"]["batch_size"]) == (3, 4096)
    (tmp_path / "mine.toml").write_text(shown)
    assert tomllib.loads(command("recipe", "show", tmp_path / "mine.toml").out) == settings


def test_data_is_described_to_people_and_machines(folder: Path) -> None:
    people, machines = (
        command("data", "describe", folder / "data"),
        command("data", "describe", folder / "data", "--json"),
    )
    assert people.code == machines.code == 0
    found = json.loads(machines.out)
    assert (found["labels"]["count"], found["splits"]["train"]["queries"]) == (10, 60)
    assert any("60" in line and "train" in line for line in people.out.splitlines())
    assert found["tokens_cut"] == {"max_length": 128, "share": 0} and "0.0% beyond max_length = 128" in people.out


def test_data_is_converted_to_files_people_can_read(folder: Path, tmp_path: Path) -> None:
    outcome = command("data", "convert", folder / "data", tmp_path / "native")
    assert outcome.code == 0 and "10 labels, 60 training queries" in outcome.out
    assert (tmp_path / "native" / "labels.jsonl").read_text() == (folder / "data" / "labels.jsonl").read_text()
    again = command("data", "convert", folder / "data", tmp_path / "native")
    assert again.code == 2 and str(tmp_path / "native") in again.err


def test_tuning_ranks_trials_on_validation_and_goes_on_after_a_kill(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "trials.jsonl"
    options = ("--try", "optimizer.learning_rate=0.03,1e-9", "--set", "training.steps=4", "--output", output, "--json")
    first = command("tune", folder / "recipe.toml", *options)
    assert first.code == 0, first.err
    found = json.loads(first.out)
    assert found["metric"] == "nDCG@5"
    assert [trial["settings"] for trial in found["results"]] == [
        ["training.steps=4", "optimizer.learning_rate=0.03"],
        ["training.steps=4", "optimizer.learning_rate=1e-9"],
    ]
    assert found["results"][0]["metrics"]["nDCG@5"] > found["results"][1]["metrics"]["nDCG@5"]

    lines = output.read_text().splitlines(keepends=True)
    output.write_text(lines[0] + lines[1][:40])
    assert json.loads(command("tune", folder / "recipe.toml", *options).out)["results"][0] == found["results"][0]
    assert [json.loads(line)["settings"] for line in output.read_text().splitlines()] == [
        json.loads(line)["settings"] for line in lines
    ]


def test_a_trial_means_what_the_same_settings_mean_in_training() -> None:
    from umpteen.config.recipes import resolve

    tried = resolve("wordnet-nouns", ("encoder.query.dropout=0.5",))
    assert tried.encoder.label_tower.dropout == 0.5  # the label tower follows, as it does in the recipe


def test_tuning_never_replaces_a_file_that_is_not_its_own(folder: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.md"
    notes.write_text("# Notes\n\nprecious\n")
    outcome = command("tune", folder / "recipe.toml", "--try", "seed=1", "--output", notes)
    assert outcome.code == 2 and "notes.md, line 1" in outcome.err
    assert notes.read_text() == "# Notes\n\nprecious\n"


def test_tuning_draws_some_points_of_a_grid_by_seed(folder: Path, tmp_path: Path) -> None:
    options = (
        "--try",
        "seed=1,2,3",
        "--try",
        "objective.temperature=0.05,0.1",
        "--trials",
        "2",
        "--set",
        "training.steps=1",
    )
    outcome = command("tune", folder / "recipe.toml", *options, "--output", tmp_path / "trials.jsonl")
    assert outcome.code == 0 and "best step" in outcome.out
    assert len((tmp_path / "trials.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_command(shell: str) -> None:
    told = {**os.environ, "_UMPTEEN_COMPLETE": f"{shell}_source"}
    script = subprocess.run([UMPTEEN], env=told, capture_output=True, text=True, check=True)
    assert "_UMPTEEN_COMPLETE" in script.stdout


def test_the_version_is_the_package_s() -> None:
    outcome = command("--version")
    assert outcome.code == 0 and __version__ in outcome.out


def test_unknown_verbs_and_options_are_refused() -> None:
    for arguments in (["fly"], ["predict"], ["train", "recipe.toml"], ["predict", "model", "--fast", "text"]):
        outcome = command(*arguments)
        assert outcome.code == 2 and "Usage" in outcome.err


def test_help_answers_at_once_because_it_loads_little() -> None:
    told = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    answer = subprocess.run([UMPTEEN, "--help"], env=told, capture_output=True, text=True, check=True)
    assert "predict" in answer.stdout
    loaded = {line.rpartition("|")[2].strip() for line in answer.stderr.splitlines() if "|" in line}
    assert "umpteen.cli.main" in loaded
    heavy = {"torch", "transformers", "numpy", "scipy", "sklearn", "pydantic", "rich", "fastapi", "asyncio"}
    assert loaded & heavy == set()
    assert len(loaded) < 300  # 130 when this was written
