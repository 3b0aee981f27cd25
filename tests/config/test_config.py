"""A recipe is complete, round-trips through TOML, and refuses what it does not know."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from umpteen.config import recipes
from umpteen.config.recipes import checked, resolve, to_toml, with_overrides
from umpteen.config.settings import RunConfig, Section
from umpteen.errors import BadConfig, BadFile, BadInput


@pytest.mark.parametrize("name", recipes.names())
def test_a_shipped_recipe_printed_in_full_reads_back_as_itself(name: str) -> None:
    config = recipes.resolve(name)
    assert checked(tomllib.loads(to_toml(config)), origin="printed") == config


def test_every_setting_is_explained_in_a_printed_recipe() -> None:
    printed = to_toml(RunConfig())
    assert not [line for line in printed.splitlines() if "=" in line and "#" not in line]


@pytest.mark.parametrize(
    ("settings", "nearest"),
    [
        ({"optimizer": {"learnin_rate": 1}}, "learning_rate"),
        ({"sed": 1}, "seed"),
        ({"encoder": {"label": {"knd": "static"}}}, "kind"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(settings: dict[str, object], nearest: str) -> None:
    with pytest.raises(BadConfig, match=f"did you mean {nearest}"):
        checked(settings, origin="recipe.toml")


def test_masked_positives_are_those_beyond_k_sampled_ones_or_as_many_as_are_asked_for() -> None:
    settings = {"name": "soft_top_k", "mask_unsampled": True}
    for more, sampled in (({}, 5), ({"k": 3}, 3), ({"k": 3, "positives_per_query": 1}, 1)):
        assert checked({"objective": settings | more}, origin="recipe.toml").objective.positives_per_query == sampled
    assert checked({"objective": {"name": "soft_top_k"}}, origin="recipe.toml").objective.positives_per_query is None
    with pytest.raises(BadConfig, match="mask_unsampled needs a number for k"):
        checked({"objective": settings | {"k": "positives"}}, origin="recipe.toml")


def test_a_value_out_of_range_is_named_with_its_key() -> None:
    with pytest.raises(BadConfig, match=r"training\.batch_size = -1"):
        checked({"training": {"batch_size": -1}}, origin="recipe.toml")


def numbers(section: type[Section] = RunConfig, under: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, Section):
                yield from numbers(kind, f"{under}{name}.")
        if {int, float} & set(kinds):
            yield under + name


@pytest.mark.parametrize("value", [str(2**70), f"-{2**70}", "1e300", "inf", "nan"])
@pytest.mark.parametrize("key", [*numbers(), "evaluation.at"])
def test_no_number_is_taken_that_no_machine_can_hold(key: str, value: str) -> None:
    with pytest.raises(BadConfig, match=key.replace(".", r"\.")):
        checked(with_overrides({}, (f"{key}={[value] if key == 'evaluation.at' else value}",)), origin="--set")


def test_a_learning_rate_no_run_survives_is_blamed_before_the_run() -> None:
    with pytest.raises(BadConfig, match=r"optimizer\.learning_rate = 1e\+30"):
        checked(with_overrides({}, ("optimizer.learning_rate=1e30",)), origin="--set")


def test_shared_towers_refuse_settings_of_their_own_for_labels() -> None:
    with pytest.raises(BadConfig, match=r"remove \[encoder.label\]"):
        checked({"encoder": {"towers": "shared", "label": {"kind": "transformer"}}}, origin="recipe.toml")


def test_overrides_are_toml_values_or_else_strings() -> None:
    settings = with_overrides(
        {}, ("training.epochs=3", "data.source=my data", "evaluation.at=[1, 5]", "training.steps=none")
    )
    config = checked(settings, origin="--set")
    assert (config.training.epochs, config.data.source, config.evaluation.at) == (3, "my data", (1, 5))
    assert config.training.steps is None


def test_an_override_without_a_value_is_refused() -> None:
    with pytest.raises(BadConfig, match="key=value"):
        with_overrides({}, ("training.epochs",))


def test_a_recipe_extends_the_one_beside_it(tmp_path: Path) -> None:
    (tmp_path / "under.toml").write_text("seed = 7\n[optimizer]\nlearning_rate = 0.5\nwarmup = 0.2\n")
    (tmp_path / "over.toml").write_text('extends = "under"\n[optimizer]\nlearning_rate = 0.25\n')
    config = resolve(str(tmp_path / "over.toml"))
    assert (config.seed, config.optimizer.learning_rate, config.optimizer.warmup) == (7, 0.25, 0.2)


def test_a_recipe_extends_a_shipped_one_even_of_its_own_name(tmp_path: Path) -> None:
    mine = tmp_path / "mixed.toml"
    mine.write_text('extends = "mixed"\nseed = 7\n')
    assert resolve(str(mine)) == resolve("mixed", ("seed=7",))


def test_a_recipe_that_extends_none_there_is_names_its_own_file(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    for unknown in ("elsewhere", "in/between", "mine"):
        mine.write_text(f'extends = "{unknown}"\n')
        with pytest.raises(BadFile, match=f'mine.toml: extends = "{unknown}": there is no such recipe beside it'):
            resolve(str(mine))


def test_a_recipe_that_extends_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('extends = "b"\n')
    (tmp_path / "b.toml").write_text('extends = "a"\n')
    with pytest.raises(BadFile, match="leads back to itself"):
        resolve(str(tmp_path / "a.toml"))


def test_a_dataset_folder_may_be_called_like_a_number() -> None:
    assert recipes.resolve("wordnet-nouns", (), "2024").data.source == "2024"


def test_the_label_tower_takes_over_what_it_does_not_set() -> None:
    config = checked({"encoder": {"query": {"dropout": 0.4}, "label": {"bigrams": 7}}}, origin="recipe.toml")
    assert (config.encoder.label_tower.dropout, config.encoder.label_tower.bigrams) == (0.4, 7)


def test_a_missing_or_broken_recipe_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="there is no such recipe"):
        resolve(str(tmp_path / "none.toml"))
    (tmp_path / "broken.toml").write_text("seed = = 1")
    with pytest.raises(BadFile, match=r"broken.toml: not a TOML file"):
        resolve(str(tmp_path / "broken.toml"))


def test_a_misspelt_recipe_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(BadInput, match="did you mean wordnet-nouns"):
        recipes.resolve("wordnet-noun")


def test_none_takes_a_setting_back_and_nothing_is_no_value(tmp_path: Path) -> None:
    own = resolve("eurlex-titles", ("data.source=here",)).objective.temperature
    assert own != RunConfig().objective.temperature
    assert resolve("eurlex-titles", ("objective.temperature=none",)).objective.temperature == (
        RunConfig().objective.temperature
    )
    with pytest.raises(BadConfig, match="there is no value"):
        resolve("eurlex-titles", ("data.source=",))


def test_none_frees_the_label_tower_from_the_query_s_setting() -> None:
    towers = ("encoder.towers=separate", "encoder.query.learning_rate=0.5")
    assert resolve("wordnet-nouns", towers).encoder.label_tower.learning_rate == 0.5
    freed = resolve("wordnet-nouns", (*towers, "encoder.label.learning_rate=none"))
    assert freed.encoder.label_tower.learning_rate is None


@pytest.mark.parametrize("override", ['objective.name=["softmax"]', 'encoder.query.kind=["static"]', "encoder.query=3"])
def test_a_value_that_is_no_name_is_told_like_any_other(override: str) -> None:
    with pytest.raises(BadConfig, match=override.partition("=")[0].split(".")[0]):
        resolve("wordnet-nouns", (override,))


def test_another_kind_takes_only_what_it_knows_of_the_recipe() -> None:
    config = resolve("wordnet-nouns", ("encoder.query.kind=transformer",))
    assert config.encoder.query.kind == config.encoder.label_tower.kind == "transformer"
    assert config.encoder.query.dropout == resolve("wordnet-nouns").encoder.query.dropout
    with pytest.raises(BadConfig, match='bigrams is for kind = "static", not for "transformer"'):
        resolve("wordnet-nouns", ("encoder.query.kind=transformer", "encoder.query.bigrams=5"))
