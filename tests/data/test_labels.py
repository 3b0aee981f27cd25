import pytest

from umpteen.data.labels import LabelCatalogue
from umpteen.errors import BadInput


def test_a_key_leads_to_its_row() -> None:
    labels = LabelCatalogue(["b", "a"], ["bee", "ant"])
    assert len(labels) == 2
    assert labels.row("a") == 1 and labels.texts[1] == "ant"
    assert "b" in labels and "c" not in labels


def test_two_labels_may_share_a_text() -> None:
    assert len(LabelCatalogue(["1", "2"], ["bank", "bank"])) == 2


def test_a_key_given_twice_is_refused_and_both_rows_are_named() -> None:
    with pytest.raises(BadInput, match=r"'x'.*rows 0 and 2"):
        LabelCatalogue(["x", "y", "x"], ["a", "b", "c"])


@pytest.mark.parametrize("text", ["", "  \t"])
def test_an_empty_text_is_refused_and_key_and_row_are_named(text: str) -> None:
    with pytest.raises(BadInput, match="'y' in row 1"):
        LabelCatalogue(["x", "y"], ["a", text])


def test_an_empty_key_is_refused() -> None:
    with pytest.raises(BadInput, match=r"row 0.*empty key"):
        LabelCatalogue([" "], ["a"])


def test_keys_and_texts_must_be_as_many() -> None:
    with pytest.raises(BadInput, match="2 label keys but 1 label texts"):
        LabelCatalogue(["x", "y"], ["a"])


def test_an_unknown_key_is_named() -> None:
    with pytest.raises(BadInput, match="'z'"):
        LabelCatalogue(["x"], ["a"]).row("z")


def test_catalogues_are_equal_when_keys_and_texts_are() -> None:
    assert LabelCatalogue(["x"], ["a"]) == LabelCatalogue(["x"], ["a"])
    assert LabelCatalogue(["x"], ["a"]) != LabelCatalogue(["x"], ["b"])
    assert LabelCatalogue(["x"], ["a"]) != LabelCatalogue(["y"], ["a"])


@pytest.mark.parametrize(
    "keys", [("cafe\u0301", "caf\u00e9"), ("caf\u00e9", "cafe\u0301"), ("q\u0323\u0307", "q\u0307\u0323")]
)
def test_two_unicode_forms_of_one_key_are_refused_and_both_rows_are_named(keys: tuple[str, str]) -> None:
    with pytest.raises(BadInput, match="rows 0 and 2, in two Unicode forms"):
        LabelCatalogue([keys[0], "x", keys[1]], ["a", "b", "c"])
