"""Writes any dataset in umpteen's own format; reading that back gives an equal dataset."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from umpteen.data.dataset import Dataset, Split
from umpteen.errors import BadInput
from umpteen.storage import atomic_folder, can_hold

ROWS_BETWEEN_REPORTS = 1024


def write_native(dataset: Dataset, folder: Path, progress: Callable[[int, int], None] | None = None) -> None:
    """labels.jsonl, dataset.toml, and one .jsonl for each split: all of them, or nothing at all."""
    if not can_hold(folder):
        raise BadInput(f"{folder} is there already and not empty; name a new folder")
    parts = {"train": dataset.train, "validation": dataset.validation, "test": dataset.test}
    splits = {name: split for name, split in parts.items() if split is not None}
    total = len(dataset.labels) + sum(len(split) for split in splits.values())
    done = 0
    with atomic_folder(folder) as partial:
        name = json.dumps(dataset.name, ensure_ascii=False).replace("\x7f", "\\u007f")  # as TOML wants it
        (partial / "dataset.toml").write_text(f"name = {name}\n", encoding="utf-8")
        for stem, records in [
            ("labels", _labels(dataset)),
            *((name, _queries(dataset, splits[name])) for name in splits),
        ]:
            with (partial / f"{stem}.jsonl").open("w", encoding="utf-8", newline="\n") as file:
                for record in records:
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
                    done += 1
                    if progress is not None and (done % ROWS_BETWEEN_REPORTS == 0 or done == total):
                        progress(done, total)


def _labels(dataset: Dataset) -> Iterator[dict[str, Any]]:
    for key, text in zip(dataset.labels.keys, dataset.labels.texts, strict=True):
        yield {"key": key, "text": text}


def _queries(dataset: Dataset, split: Split) -> Iterator[dict[str, Any]]:
    keys = dataset.labels.keys
    for query, text in enumerate(split.texts):
        record: dict[str, Any] = {"text": text, "labels": [keys[row] for row in split.relevance.of(query)]}
        weights = split.relevance.weights_of(query)
        if (weights != 1).any():
            record["weights"] = [float(str(weight)) for weight in weights]  # 0.1, not 0.10000000149011612
        ignored = split.filtered.of(query)
        if len(ignored):
            record["ignore"] = [keys[row] for row in ignored]
        yield record
