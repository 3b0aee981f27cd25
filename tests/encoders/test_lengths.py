"""How much of a text is read: chosen from the training texts, and told where it is not all."""

from pathlib import Path

import pytest

from miniature import command, write_recipe
from tiny import POSITIONS, tiny_transformer
from umpteen.config.recipes import resolve
from umpteen.config.settings import EncoderConfig
from umpteen.data.dataset import Dataset
from umpteen.data.labels import LabelCatalogue, Relevance, Split
from umpteen.data.texts import Texts
from umpteen.encoders.encoder import tokens_now
from umpteen.encoders.towers import Towers, shares_cut, with_lengths
from umpteen.model.classifier import Classifier
from umpteen.training.build import build_run


def settings(folder: Path, kind: str, length: int | str) -> EncoderConfig:
    part = {"start": tiny_transformer(folder), "max_length": length}
    return EncoderConfig.model_validate({"query": {"kind": "sum", kind: part} if kind == "frozen" else part})


def dataset_of(texts: list[str], labels: list[str]) -> Dataset:
    relevance = Relevance.from_lists([[0]] * len(texts), len(labels))
    catalogue = LabelCatalogue([f"key {row}" for row in range(len(labels))], labels)
    return Dataset("mine", catalogue, Split.of(texts, relevance), None, None, "mine")


@pytest.mark.parametrize("kind", ["static", "frozen"])
def test_auto_keeps_every_token_of_99_texts_in_100(kind: str, tmp_path: Path) -> None:
    data = dataset_of(["dog"] * 50 + ["dog " * 37] * 49 + ["dog " * 900], ["dog"])
    fitted = with_lengths(settings(tmp_path, kind, "auto"), data)
    lengths = {tower.max_length for tower in (*fitted.query.reading(), *fitted.label_tower.reading())}
    assert lengths == {48}  # the 99th percentile lies a little beyond 37, or 39 with the special tokens
    assert with_lengths(settings(tmp_path, kind, 9), data).query.reading()[0].max_length == 9
    longer = with_lengths(settings(tmp_path, kind, "auto"), dataset_of(["dog"], ["dog " * 50]))
    assert longer.query.reading()[0].max_length == 56  # labels are read whole, too
    beyond = with_lengths(settings(tmp_path, kind, "auto"), dataset_of(["dog " * 900], ["dog"]))
    in_pieces = 2 * 15 + 900  # each of the 15 pieces has special tokens of its own
    assert beyond.query.reading()[0].max_length == 8 * -(-(900 if kind == "static" else in_pieces) // 8)
    endless = with_lengths(settings(tmp_path, kind, "auto"), dataset_of(["dog " * 9000], ["dog"]))
    assert endless.query.reading()[0].max_length == 2048


def test_the_share_of_tokens_that_is_cut_is_counted(tmp_path: Path) -> None:
    tower = Towers.build(settings(tmp_path, "static", 10), 0).query
    assert shares_cut(tower, Texts.of(["dog " * 10, "dog " * 30])) == {"": 0.5}
    assert shares_cut(tower, Texts.of(["dog"])) == {"": 0}
    assert shares_cut(tower, Texts.of([])) == {"": 0}
    in_pieces = Towers.build(settings(tmp_path, "frozen", 2 * POSITIONS), 0).query
    kept, text = 2 * POSITIONS, "dog " * 3 * (POSITIONS - 2)  # three pieces, of which two are read
    assert shares_cut(in_pieces, Texts.of([text])) == {"frozen": 0.3333}
    assert len(in_pieces.leaves(tokens_now(in_pieces, [text]))[0][1].ids) == kept


def test_tokens_that_one_of_several_parts_reads_are_not_cut(tmp_path: Path) -> None:
    start = str(settings(tmp_path, "static", 20).query.reading()[0].start)
    bag, transformer = {"start": start, "max_length": 20}, {"start": start, "max_length": 10}
    config = EncoderConfig.model_validate({"query": {"kind": "sum", "static": bag, "transformer": transformer}})
    tower = Towers.build(config, 0).query
    assert shares_cut(tower, Texts.of(["dog " * 20])) == {"static": 0, "transformer": 0.5455}


def test_training_tells_of_cut_tokens_and_the_card_says_how_many(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "encoder.query.max_length=2", "training.steps=1")
    outcome = command("train", recipe, "--output", tmp_path / "model")
    assert outcome.code == 0 and "tokens are cut off" in outcome.out + outcome.err
    assert Classifier.load(tmp_path / "model").training["tokens_cut"] > 0.1
    assert "training tokens cut" in (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    whole = build_run(resolve(str(write_recipe(tmp_path, "encoder.query.max_length=auto"))), workspace=None)
    assert whole.cut[""] < 0.01


def test_training_tells_of_a_part_that_reads_less_than_another(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "encoder.query.frozen.max_length=4", "training.steps=1", kind="sum")
    outcome = command("train", recipe, "--output", tmp_path / "model")
    assert outcome.code == 0 and "beyond what its frozen part reads" in outcome.out + outcome.err
    training = Classifier.load(tmp_path / "model").training
    assert training["tokens_cut"] == training["tokens_cut_by_part"]["static"] < training["tokens_cut_by_part"]["frozen"]
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert "training tokens cut by part: static 0" in card
