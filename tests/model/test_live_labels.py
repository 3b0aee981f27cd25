"""Labels change and their rows stay; a snapshot never changes."""

import numpy as np
import pytest
from small_catalogue import entries

from umpteen.data.labels import LabelCatalogue
from umpteen.errors import BadInput
from umpteen.model.changes import Add, Change, Rename, Retire, Version
from umpteen.model.labels import LiveLabels

FIRST = LiveLabels(LabelCatalogue(["f", "t", "l"], ["Fish", "tax law", "library"]))


def after(labels: LiveLabels, *changes: Change) -> LiveLabels:
    return labels.after([Version(labels.version + 1, "now", "", labels.steps_of(changes))])


def test_keys_never_shift() -> None:
    labels = after(FIRST, Add("d", "dog"), Retire("f"))
    assert (labels.row("t"), labels.row("l"), labels.row("d")) == (1, 2, 3)
    assert list(labels.keys) == ["f", "t", "l", "d"] and list(labels.texts) == ["Fish", "tax law", "library", "dog"]
    assert (len(labels), labels.count(), labels.version) == (4, 3, 1)
    assert labels.active.tolist() == [False, True, True, True]
    assert "f" not in labels and "d" in labels and labels.is_retired("f")


def test_a_snapshot_stays_as_it_was() -> None:
    renamed = after(FIRST, Rename("t", "tariffs"), Add("d", "dog"))
    after(renamed, Retire("t"), Rename("d", "hound"))
    assert renamed.texts[1] == "tariffs" and renamed.texts[3] == "dog" and renamed.active.all()
    assert len(FIRST) == 3 and FIRST.texts[1] == "tax law"


def test_every_label_knows_where_it_comes_from() -> None:
    labels = after(FIRST, Add("d", "dog"), Rename("t", "tariffs"))
    assert [labels.entry(row).origin for row in range(4)] == ["trained", "renamed", "trained", "added"]
    assert labels.origins.tolist() == [0, 2, 0, 1]
    labels = after(labels, Rename("t", "tax law"), Rename("d", "hound"))
    assert [labels.entry(row).origin for row in (1, 3)] == ["trained", "added"]


def test_a_retired_label_comes_back_in_its_row() -> None:
    gone = after(FIRST, Retire("t"))
    back = after(gone, Add("t", "tariffs"))
    assert back.row("t") == 1 and back.texts[1] == "tariffs" and back.entry(1).origin == "renamed"
    assert after(gone, Add("t", "tax law")).entry(1).origin == "trained"


def test_labels_are_listed_and_found_by_key_or_text_whatever_the_case() -> None:
    labels = after(FIRST, Add("FAQ", "questions"), Rename("l", "archive of Maps"), Retire("t"))
    assert [entry.key for entry in entries(labels, retired=False)] == ["f", "l", "FAQ"]
    assert [entry.key for entry in entries(labels, retired=False)[1:2]] == ["l"]
    assert [(entry.key, entry.retired) for entry in entries(labels)] == [
        ("f", False), ("t", True), ("l", False), ("FAQ", False)
    ]  # fmt: skip
    assert [entry.row for entry in entries(labels, "F", retired=False)] == [0, 2, 3]  # f, archive of Maps, FAQ
    assert [entry.key for entry in entries(labels, "maps", retired=False)] == ["l"]
    assert entries(labels, "library", retired=False) == []
    assert entries(labels, "tax", retired=False) == [] and len(entries(labels, "tax")) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([Add("f", "x")], "'f' already.*'Fish'"),
        ([Add("n", "x"), Rename("n", "y")], "'n' stands twice"),
        ([Add("n", " \n")], "'n' has an empty text"),
        ([Add("", "x")], "key is empty"),
        ([Add(" n", "x")], "blanks"),
        ([Add("a/b", "x")], "a slash"),
        ([Add("a\nb", "x")], r"U\+000A"),
        ([Add("a\x7f", "x")], r"U\+007F"),
        ([Add("a\u2028b", "x")], r"U\+2028"),
        ([Add("a\ud800", "x")], r"U\+D800"),
        ([Add("n", "x\udfff")], r"U\+DFFF"),
        ([Add("n" * 600, "x")], "600 characters"),
        ([Add(3, "x")], "3 is a int"),
        ([Add("n", None)], "NoneType, not a string"),
        ([Rename("n", "x")], "no label with the key 'n'"),
        ([Retire("n")], "no label with the key 'n'"),
        ([Rename("f", "")], "'f' has an empty text"),
        ([Retire(key) for key in "ftl"], "last label"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changes: list[Change], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        FIRST.steps_of(changes)


def test_the_last_label_may_go_if_another_comes() -> None:
    labels = after(FIRST, *(Retire(key) for key in "ftl"), Add("n", "new"))
    assert labels.count() == 1 and entries(labels, retired=False)[0].key == "n"


def test_a_retired_label_cannot_be_renamed_or_retired_again() -> None:
    gone = after(FIRST, Retire("t"))
    for change in (Rename("t", "x"), Retire("t")):
        with pytest.raises(BadInput, match="'t' is retired; add it again"):
            gone.steps_of([change])
    with pytest.raises(BadInput, match="'t' is retired"):
        gone.row("t")


def test_a_text_that_stays_is_no_change() -> None:
    assert FIRST.steps_of([Rename("f", "Fish")]) == ()


def test_several_versions_at_once_are_the_same_as_one_after_the_other() -> None:
    chance = np.random.default_rng(0)
    one, versions = FIRST, []
    for number in range(1, 40):
        keys = [entry.key for entry in entries(one, retired=False)]
        pick = keys[chance.integers(len(keys))]
        change = [Add(f"k{number}", f"text {number}"), Rename(pick, f"other {number}"), Retire(pick)][
            chance.integers(3) if len(keys) > 1 else 0
        ]
        versions.append(Version(number, "now", "", one.steps_of([change])))
        one = one.after(versions[-1:])
    assert entries(FIRST.after(versions)) == entries(one)
