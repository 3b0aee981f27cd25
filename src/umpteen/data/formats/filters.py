"""Filter files: pairs that neither training nor scoring may see, one "query_row label_row" a line."""

from pathlib import Path

from umpteen.data.formats.lines import read_lines
from umpteen.data.prepared import Builder, Place
from umpteen.errors import BadFile

# Renee turns the name round. Tools of the field ask for an empty file where there is nothing to filter.
NAMES = {
    "train": ("filter_labels_train.txt", "trn_filter_labels.txt"),
    "test": ("filter_labels_test.txt", "tst_filter_labels.txt"),
}


def filter_files(folder: Path, split: str) -> list[Path]:
    return [folder / name for name in NAMES[split] if (folder / name).is_file()]


def read_filter(folder: Path, split: str, into: Builder) -> None:
    """Adds the split's pairs, if it has a filter file; its queries must have been added."""
    paths = filter_files(folder, split)
    if len(paths) > 1:
        raise BadFile(paths[1], f"stands beside {paths[0].name}, which means the same; remove one of them")
    for path in paths:
        for at, line in read_lines(path, into.advance, may_be_empty=True):
            if line.strip():
                into.ignore(*_pair(line, at), at)


def _pair(line: str, at: Place) -> tuple[int, int]:
    try:
        query, label = map(int, line.split())
    except ValueError:
        raise at.error(f'{line.strip()[:60]!r} is not "query_row label_row", two whole numbers') from None
    return query, label
