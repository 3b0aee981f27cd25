"""Towers of several parts in recipes: what is inherited, what another kind leaves behind, what is refused."""

import tomllib
from pathlib import Path

import pytest

from umpteen.config.recipes import checked, resolve, to_toml, with_overrides
from umpteen.config.settings import EncoderConfig, StaticTower, SumTower
from umpteen.encoders.towers import Towers
from umpteen.errors import BadConfig

SUM = ("encoder.label.kind=sum", "encoder.label.static.idf=true")


def test_another_kind_of_queries_is_another_kind_of_labels_unless_these_have_their_own() -> None:
    for kind in ("static", "frozen"):
        encoder = resolve("wordnet-nouns-mixed", (f"encoder.query.kind={kind}",)).encoder
        assert (encoder.query.kind, encoder.label_tower.kind) == (kind, kind)
    kept = resolve("wordnet-nouns-mixed", ("encoder.label.kind=static", "encoder.query.kind=frozen")).encoder
    assert (kept.query.kind, kept.label_tower.kind) == ("frozen", "static")


@pytest.mark.parametrize(("part", "setting"), [("frozen", "hidden=9"), ("static", "bigrams=7")])
def test_a_part_alone_is_as_it_was_among_the_others(part: str, setting: str, tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(f'extends = "mixed"\n[encoder.query.{part}]\n{setting}\nmax_length = 77\n')
    among = resolve(str(own)).encoder.query.parts[part]
    alone = resolve(str(own), (f"encoder.query.kind={part}",)).encoder
    known = type(alone.query).model_fields.keys() & type(among).model_fields.keys() - {"normalise", "learning_rate"}
    assert len(known) > 4 and all(getattr(alone.query, name) == getattr(among, name) for name in known)
    assert alone.label_tower.kind == part


def test_labels_have_the_parts_of_queries_but_for_what_they_say() -> None:
    encoder = resolve("wordnet-nouns-mixed").encoder
    assert isinstance(encoder.query, SumTower) and isinstance(encoder.label, SumTower)
    assert encoder.query.static is not None and encoder.label.static is not None
    assert (encoder.query.static.bigrams, encoder.label.static.bigrams) == (100_000, 0)
    assert encoder.label.static.dropout == encoder.query.static.dropout == 0.3
    assert encoder.label.frozen == encoder.query.frozen
    beside = EncoderConfig.model_validate(
        {"query": {"dropout": 0.2, "bigrams": 7}, "label": {"kind": "sum", "static": {"bigrams": 0}, "table": {}}}
    )
    assert isinstance(beside.query, StaticTower) and isinstance(beside.label, SumTower)
    assert beside.label.static is not None and beside.label.static.dropout == 0.2


def test_a_written_recipe_reads_back_as_it_was() -> None:
    config = resolve("wordnet-nouns-mixed", ("encoder.label.table.learning_rate=0.1",))
    assert checked(tomllib.loads(to_toml(config)), origin="again") == config


def test_labels_go_without_a_part_of_queries_where_the_recipe_or_an_override_says_so() -> None:
    said = resolve("wordnet-nouns-finetuned")
    assert [*said.encoder.query.parts] == ["static", "frozen", "transformer"]
    assert [*said.encoder.label_tower.parts] == ["static", "frozen"]
    assert checked(tomllib.loads(to_toml(said)), origin="again") == said
    overridden = resolve(
        "wordnet-nouns-mixed", ("encoder.query.transformer.layers=3", "encoder.label.transformer=none")
    )
    assert [*overridden.encoder.label_tower.parts] == ["static", "frozen"]
    assert checked(tomllib.loads(to_toml(overridden)), origin="again") == overridden


@pytest.mark.parametrize(
    ("own", "kind"), [("encoder.query", "static"), ("encoder.query.static", "static"), ("encoder.query", "sum")]
)
def test_what_labels_leave_to_the_optimizer_stays_so_in_a_written_recipe(own: str, kind: str) -> None:
    of_queries = (f"encoder.query.kind={'sum' if own.endswith('static') else kind}", f"{own}.learning_rate=0.02")
    labels = (f"encoder.label.kind={kind}", "encoder.label.learning_rate=none")
    said = resolve("mixed", (*of_queries, *labels))
    assert said.encoder.label_tower.learning_rate is None
    assert checked(tomllib.loads(to_toml(said)), origin="again") == said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("encoder.query.kind=sum",), "needs parts that read texts"),
        (("encoder.query.kind=sum", "encoder.query.static.skip=1"), "encoder.query.static.skip"),
        (
            ("encoder.label.kind=sum", "encoder.label.static.idf=true", "encoder.label.table.normalise=true"),
            "normalise",
        ),
        (("encoder.query.kind=concat", "encoder.query.static.idf=true", "encoder.label.kind=static"), "like parts"),
    ],
)
def test_what_makes_no_sense_is_refused(given: tuple[str, ...], said: str) -> None:
    with pytest.raises(BadConfig, match=said):
        checked(with_overrides({}, given), origin="here")


def test_parts_that_cannot_be_compared_are_refused() -> None:
    parts = {"static": {"dimension": 8, "random_weights": True, "weight": 2.0}, "frozen": {"dimension": 4}}
    label = {"static": {"dimension": 8, "weight": 1.0}}
    config = EncoderConfig.model_validate({"query": {"kind": "concat", **parts}, "label": label})
    with pytest.raises(BadConfig, match="same dimensions and weights"):
        Towers.build(config, 0)
