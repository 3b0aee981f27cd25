import runpy
from pathlib import Path
from typing import Any

import pytest

from umpteen.data.dataset import BUNDLED, Dataset, open_dataset
from umpteen.data.describe import describe

FOLDER = BUNDLED / "wordnet-nouns"
SCRIPT = Path(__file__).parents[2] / "scripts" / "build_wordnet_nouns.py"
DATA_NOUN = Path("/usr/share/wordnet/data.noun")

MINIATURE = """\
  1 A licence,
  2
  3 in full.
00000001 03 n 01 thing 0 001 ~ 00000002 n 0000 | what there is
00000002 03 n 02 body_of_water 0 water 0 002 @ 00000001 n 0000 ;c 00000004 n 0000 | water; "a lake"
00000003 03 n 01 Lake_Nemi 0 003 @i 00000002 n 0000 + 00000001 v 0101 ;c 00000009 v 0000 | a lake; in Italy
00000004 03 n 01 hydrology 0 000 | the study of water
"""


@pytest.fixture(scope="module")
def wordnet(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return open_dataset("wordnet-nouns", cache=tmp_path_factory.mktemp("cache"))


def test_wordnet_nouns_opens_by_name_with_its_documented_sizes(wordnet: Dataset) -> None:
    assert wordnet.test is not None
    assert (len(wordnet.train), len(wordnet.test), len(wordnet.labels)) == (11_959, 2_983, 3_856)
    assert (wordnet.train.filtered.matrix.nnz, wordnet.test.filtered.matrix.nnz) == (534, 126)
    assert round(wordnet.train.relevance.matrix.nnz / len(wordnet.train), 1) == 5.1
    assert wordnet.train.relevance.label_counts().min() == 2


def test_wordnet_nouns_keeps_the_order_and_the_keys_of_its_source(wordnet: Dataset) -> None:
    assert wordnet.test is not None
    assert wordnet.labels.keys == sorted(wordnet.labels.keys)
    assert wordnet.labels.texts[0] == "thing: a separate and self-contained entity"
    assert wordnet.train.texts[1] == "food manufacturer: a person who manufactures food products"
    assert wordnet.test.texts[1] == "gingerbread man: gingerbread cut in the shape of a person"


def test_every_query_of_wordnet_nouns_that_is_a_label_ignores_it_and_nothing_else_is_suspicious(
    wordnet: Dataset,
) -> None:
    assert set(wordnet.train.texts) & set(wordnet.labels.texts)
    assert [one["kind"] for one in describe(wordnet)["suspicious"] if one["count"]] == []


def test_the_licence_notice_ships_with_the_data() -> None:
    licence = (FOLDER / "LICENSE").read_text()
    assert "WordNet 3.0 Copyright 2006 by Princeton University.  All rights reserved." in licence
    assert (FOLDER / "README.md").is_file()


def test_the_script_reads_lemmas_glosses_and_noun_pointers(tmp_path: Path) -> None:
    script: dict[str, Any] = runpy.run_path(str(SCRIPT))
    (tmp_path / "data.noun").write_text(MINIATURE)
    licence, synsets = script["read"](tmp_path / "data.noun")
    assert licence == "A licence,\n\nin full.\n"
    lake = synsets["00000003"]
    assert (lake.as_query(), lake.as_label()) == ("Lake Nemi: a lake; in Italy", "Lake Nemi: a lake")
    assert synsets["00000002"].as_query() == 'body of water, water: water; "a lake"'
    assert script["broader"]("00000003", synsets) == {"00000001", "00000002", "00000004"}


@pytest.mark.skipif(not DATA_NOUN.is_file(), reason="needs WordNet (Debian: wordnet-base)")
def test_the_script_rebuilds_the_bundled_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [str(SCRIPT), str(DATA_NOUN), str(tmp_path)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (FOLDER / path.name).read_bytes(), path.name
