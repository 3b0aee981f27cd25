"""A static model predicts without torch what it predicts with it; whatever else is asked of it loads its encoders."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_explain import TEXT, classifier_of

from miniature import KEYS
from tiny import tiny_tokenizer
from umpteen.calibration.calibration import fit_calibration
from umpteen.calibration.curves import HeldOut
from umpteen.encoders.light import LightEncoder
from umpteen.encoders.towers import Towers
from umpteen.errors import DamagedModel
from umpteen.model.classifier import Classifier, Prediction
from umpteen.model.folder import ModelFolder

TEXTS = [TEXT, "tax law in the library", "字 7", "\u200d"]
HEAVY = ("torch", "sklearn", "transformers", "pydantic", "rich", "scipy.sparse")
PROGRAM = """
import json, sys
import umpteen.cli
from umpteen.cli.main import main

for arguments in json.loads(sys.argv[1]):
    sys.argv = ["umpteen", "predict", "--json", *arguments]
    main()
    print(json.dumps([name for name in {heavy} if name in sys.modules]))
"""


@pytest.fixture(scope="module")
def models(written: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Static models: of words alone, with bigrams, with biases; changed and corrected; with rankers and calibrated."""
    home = tmp_path_factory.mktemp("models")
    start = tiny_tokenizer(home / "tokenizer")
    made = {
        "words": Classifier.load(written),
        "bigrams": classifier_of("static", start),
        "bias": classifier_of("static, bias", start),
        "changed": classifier_of("static", start),
        "sparse": classifier_of("static", start, sparse=True),
        "all": classifier_of("static", start, sparse=True, memory=True),
    }
    for name, classifier in made.items():
        classifier.save(home / name)
    scores = np.sort(np.random.default_rng(0).random((50, 5), np.float32))[:, ::-1].copy()
    probabilities = fit_calibration(HeldOut(scores, scores > 0.6, np.full(50, 5)), {"said": "chance"})
    for name in ("bigrams", "all"):
        Classifier.load(home / name).keep_calibration(probabilities)
    for name in ("changed", "all"):
        classifier = Classifier.load(home / name)
        classifier.add_labels({"new": "a dog and its food", "other": "trees"})
        classifier.rename_labels({KEYS[0]: "library of dogs"})
        classifier.retire_labels([KEYS[2], "other"])
        classifier.learn([TEXT, "tax law"], [[KEYS[-1]], ["new"]], [[classifier.predict([TEXT])[0][0].key], []])
    return {name: home / name for name in made}


def same(found: list[list[dict[str, Any]]], expected: list[list[Prediction]]) -> None:
    """The same labels in the same order, and the same numbers to rounding."""
    for ours, theirs in zip(found, expected, strict=True):
        assert [(one["key"], one["text"]) for one in ours] == [(one.key, one.text) for one in theirs]
        assert [one["score"] for one in ours] == pytest.approx([one.score for one in theirs], abs=1e-6)
        probable = [one.probability for one in theirs if one.probability is not None]
        assert [one["probability"] for one in ours if "probability" in one] == pytest.approx(probable, abs=1e-5)


def test_the_command_line_predicts_the_same_and_loads_no_torch(models: dict[str, Path]) -> None:
    asked = [(name, (str(path), *TEXTS[:3], "--k", "4")) for name, path in models.items()]
    asked += [
        ("all", (str(models["all"]), *TEXTS[:3], "--rule", "f1")),
        ("all", (str(models["all"]), TEXT, "--no-ranker")),
    ]
    program = [sys.executable, "-c", PROGRAM.format(heavy=HEAVY), json.dumps([arguments for _, arguments in asked])]
    lines = iter(subprocess.run(program, capture_output=True, text=True, check=True).stdout.splitlines())
    for name, (path, *rest) in asked:
        texts = [one for one in rest if one in TEXTS]
        found = [json.loads(next(lines))["labels"] for _ in texts]
        how: dict[str, Any] = {"k": 4} if "--k" in rest else {"rule": "f1"} if "--rule" in rest else {}
        same(found, Classifier.load(path, ranker="--no-ranker" not in rest).predict(texts, **how))
        matrices = name in ("changed", "sparse", "all")  # examples and rankers take scipy's
        assert json.loads(next(lines)) == (["scipy.sparse"] if matrices else []), name


@pytest.mark.parametrize("name", ["words", "bigrams", "bias"])
def test_vectors_are_those_of_the_towers(models: dict[str, Path], name: str) -> None:
    folder = ModelFolder(models[name]).trained / "encoder"
    light, towers = LightEncoder.read(folder), Towers.load(folder)
    assert light is not None and light.dimension == towers.dimension
    np.testing.assert_allclose(light.encode(TEXTS), towers.query.encode(TEXTS).numpy(), atol=1e-6)


def test_what_needs_the_encoders_loads_them(models: dict[str, Path], tmp_path: Path) -> None:
    model = Path(shutil.copytree(models["all"], tmp_path / "model"))
    light = Classifier.load(model, light=True)
    light.add_labels({"later": "a network of trees"})
    light.learn(["tree network"], ["later"])
    assert light.explain(TEXT, "later").score == pytest.approx(Classifier.load(model).explain(TEXT, "later").score)
    found = [[one._asdict() for one in labels] for labels in light.predict(TEXTS[:3])]
    same(found, Classifier.load(model).predict(TEXTS[:3]))
    light.save(tmp_path / "copy")
    same(found, Classifier.load(tmp_path / "copy", light=True).predict(TEXTS[:3]))


def test_a_damaged_or_strange_model_is_refused_in_the_same_words(models: dict[str, Path], tmp_path: Path) -> None:
    def settings(folder: Path, **other: Any) -> None:
        file = folder / "umpteen_encoder.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **other}))

    for number, damage in enumerate(
        (
            lambda model: (model / "link").symlink_to(tmp_path),
            lambda model: next(model.glob("model-*/encoder/*/tokenizer.json")).write_text("{}"),
            lambda model: next(model.glob("model-*/encoder/*/model.safetensors")).unlink(),
            lambda model: settings(next(model.glob("model-*/encoder"))),
        )
    ):
        model = Path(shutil.copytree(models["bigrams"], tmp_path / str(number)))
        damage(model)
        told = []
        for light in (True, False):
            with pytest.raises(DamagedModel) as refused:
                Classifier.load(model, light=light)
            told.append(str(refused.value))
        assert told[0] == told[1]
    encoder = Path(shutil.copytree(ModelFolder(models["bigrams"]).trained / "encoder", tmp_path / "encoder"))
    for other in ({"kind": "transformer"}, {"bigrams": 49}, {"max_length": 0}, {"max_length": "all"}, {"normalise": 0}):
        settings(encoder, **{"kind": "static", "bigrams": 50, "max_length": 16, **other})
        assert (LightEncoder.read(encoder) is None) is ("normalise" not in other)
