"""What may be the key and the text of a new label: nothing unseen, nothing endless, no key in two Unicode forms."""

import pytest

from umpteen.data.labels import LabelCatalogue
from umpteen.errors import BadInput
from umpteen.model.changes import LONGEST_TEXT, Add, Rename, Retire
from umpteen.model.labels import LiveLabels

COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"


@pytest.fixture
def labels() -> LiveLabels:
    return LiveLabels(LabelCatalogue(["a", "\u202eb"], ["ant", "bee"]))


@pytest.mark.parametrize(
    "character", [*"\x00\x1b\x7f\x9b\u2028\u2029\u061c\u200e\u200f\u202a\u202e\u2066\u2069", "\ud800"]
)
def test_a_new_key_holds_nothing_unseen(labels: LiveLabels, character: str) -> None:
    with pytest.raises(BadInput, match=rf"holds the character U\+{ord(character):04X}"):
        labels.steps_of([Add(f"k{character}ey", "text")])


def test_an_old_key_may_be_renamed_and_retired_whatever_it_holds(labels: LiveLabels) -> None:
    assert labels.steps_of([Rename("\u202eb", "bumblebee")]) and labels.steps_of([Retire("\u202eb")])


def test_a_new_key_is_composed_and_the_composed_form_is_named(labels: LiveLabels) -> None:
    with pytest.raises(BadInput, match=rf"NFC.*give '{COMPOSED}'"):
        labels.steps_of([Add(DECOMPOSED, "coffee")])
    assert labels.steps_of([Add(COMPOSED, "coffee")])


def test_a_new_key_is_no_other_form_of_an_old_one() -> None:
    old = LiveLabels(LabelCatalogue(["a", DECOMPOSED], ["ant", "coffee"]))
    with pytest.raises(BadInput, match="already, in decomposed form"):
        old.steps_of([Add(COMPOSED, "coffee")])


def test_a_text_has_an_end(labels: LiveLabels) -> None:
    assert labels.steps_of([Add("n", "x" * LONGEST_TEXT)])
    for change in (Add("n", "x" * (LONGEST_TEXT + 1)), Rename("a", "x" * (LONGEST_TEXT + 1))):
        with pytest.raises(BadInput, match="has 10,001 characters; 10,000 are the most"):
            labels.steps_of([change])


@pytest.mark.parametrize("character", ["\x00", "\x1b", "\x7f", "\x9b", "\udfff"])
def test_a_text_holds_no_control_characters(labels: LiveLabels, character: str) -> None:
    with pytest.raises(BadInput, match=rf"'n' holds U\+{ord(character):04X}"):
        labels.steps_of([Add("n", f"x{character}y")])
    assert labels.steps_of([Add("n", "two\tcolumns\r\nand lines, \u202bright to left\u202c")])
