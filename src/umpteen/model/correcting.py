"""For people who correct a model or its data: corrections read, examples written, what is worth a look first.

That are the texts of which the model is least certain. Certainty, of a calibrated model, is the expected share of right
decisions about a text's first labels, each of which is given if it is right more often than not; else the widest gap
between neighbours among the first scores.
"""

import hashlib
import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from umpteen.calibration.calibration import Calibration
from umpteen.data.dataset import Dataset, write_native
from umpteen.data.formats.columns import columns_of
from umpteen.data.formats.reading import ENDINGS, BadRow, InputRows, Row, list_of, read_records, string
from umpteen.data.labels import LabelCatalogue, Relevance, Split
from umpteen.errors import BadFile, BadInput
from umpteen.files.progress import Advance, Notice, silent
from umpteen.files.storage import write_atomically
from umpteen.model.catalogue import open_labels
from umpteen.model.changes import Example
from umpteen.model.classifier import USUAL_K, Classifier
from umpteen.model.examples import LiveExamples, open_examples

WRONG = "wrong"  # the column of labels that are
LOOKED_AT = 1000  # rows, to make out columns
TEXTS_AT_A_TIME = 4096


def read_corrections(path: Path, known: Container[str], notice: Notice) -> list[Example]:
    """The examples of a file: `text`, `labels` that are right, and those that are `wrong`, of which either may lack.

    `known` are the model's keys, by which cells are parted. Rows that name no label are passed over, and counted.
    """
    if not path.is_file() or not path.name.endswith(ENDINGS):
        raise BadFile(path, f"corrections are read from a file that ends in {', '.join(ENDINGS)}")
    rows = list(read_records(path))
    first = [row for _, row in rows[:LOOKED_AT]]
    try:
        columns = columns_of(path, first, {}, known)
    except BadFile:
        if not any(row.get(WRONG) for row in first):
            raise
        columns = columns_of(path, [{"labels": [], **row} for row in first], {}, known)
    if columns.told:
        notice(columns.told)
    found = []
    for at, row in rows:
        record = columns.record(row, at)
        if isinstance(record.get(WRONG), str):
            record[WRONG] = columns.split(record[WRONG])
        right, wrong = (list_of("strings", {name: [], **record}, name, at) for name in ("labels", WRONG))
        found.append(Example(string(record, "text", at), tuple(dict.fromkeys(right)), tuple(dict.fromkeys(wrong))))
    saying = [example for example in found if example.labels or example.wrong]
    if len(saying) < len(found):
        notice(f"{len(found) - len(saying):,} rows name no label, and are passed over")
    return saying


def training_lines(examples: LiveExamples, knows: Callable[[str], bool] = lambda key: True) -> Iterator[dict[str, Any]]:
    """One line a text, as `umpteen fit` reads them if it has a right label; what is wrong stands beside."""
    for text, (said, _) in examples.by_text().items():
        right = [key for key, is_right in said.items() if is_right and knows(key)]
        wrong = [key for key, is_right in said.items() if not is_right and knows(key)]
        if right or wrong:
            yield {"text": text, "labels": right, **({"wrong": wrong} if wrong else {})}


def export_examples(model: Path, path: Path) -> int:
    if path.suffix != ".jsonl":
        raise BadFile(path, "examples are written as .jsonl")
    found = training_lines(open_examples(model))
    lines = [json.dumps(line, ensure_ascii=False) + "\n" for line in found if line["labels"]]
    write_atomically(path, "".join(lines))
    return len(lines)


def with_examples(dataset: Dataset, model: Path, output: Path) -> tuple[str, int]:
    """The dataset with a model's examples in train, and with their labels if it lacks some: a folder beside the output.

    A text that train has already keeps its labels, but for those that are wrong. Returns the folder, which is there
    already if the same call was made before, and how many texts have right labels by examples.
    """
    labels = open_labels(model).labels
    meaning = dict(zip(dataset.labels.keys, dataset.labels.texts, strict=True))
    lines = list(training_lines(open_examples(model), lambda key: key in meaning or key in labels))
    count = sum(bool(line["labels"]) for line in lines)
    if not count:
        raise BadInput(f"{model} has no examples with right labels to train on; `umpteen learn` teaches it some")
    later = {key: labels.texts[labels.row(key)] for line in lines for key in line["labels"] if key not in meaning}
    named = hashlib.sha256(f"{dataset.fingerprint} {json.dumps([lines, later])}".encode()).hexdigest()[:8]
    folder = Path(f"{output}.data-{named}")
    if folder.exists():
        return str(folder), count
    meaning |= later
    catalogue = LabelCatalogue(meaning, meaning.values())
    same = np.arange(len(dataset.labels))
    splits = {name: split.moved(same, len(catalogue)) for name, split in dataset.splits().items()}
    splits["train"] = _taught(splits["train"], lines, catalogue)
    write_native(Dataset.of(dataset.name, catalogue, **splits), folder)
    return str(folder), count


def _taught(train: Split, lines: list[dict[str, Any]], catalogue: LabelCatalogue) -> Split:
    """One row for each text of the lines behind those of other texts: what it had, and what the lines say of it."""
    said = {line["text"]: line for line in lines}
    weights: dict[str, dict[int, float]] = {text: {} for text, line in said.items() if line["labels"]}
    ignored: dict[str, set[int]] = defaultdict(set)
    known = [row for row, text in enumerate(train.texts) if text in said]
    for row in known:
        rows, own = train.relevance.of(row).tolist(), train.relevance.weights_of(row).tolist()
        weights.setdefault(train.texts[row], {}).update(zip(rows, own, strict=True))
        ignored[train.texts[row]].update(train.filtered.of(row).tolist())
    for text, found in weights.items():
        right = [catalogue.row(key) for key in said[text]["labels"]]
        found |= dict.fromkeys(right, 1.0)
        ignored[text].difference_update(right)
        for key in said[text].get("wrong", ()):
            found.pop(catalogue.row(key) if key in catalogue else -1, None)
    rows, shares = [list(found) for found in weights.values()], [list(found.values()) for found in weights.values()]
    labels = Relevance.from_lists(rows, len(catalogue), shares)
    filtered = Relevance.from_lists([list(ignored[text]) for text in weights], len(catalogue))
    return train.take(np.delete(np.arange(len(train)), known)).join(Split.of(list(weights), labels, filtered))


class Doubt(NamedTuple):
    """A text to look at, with what the model would answer."""

    certainty: float
    text: str
    labels: list[str]  # keys

    def line(self) -> dict[str, Any]:
        return {"text": self.text, "labels": self.labels, "wrong": [], "certainty": round(self.certainty, 4)}


def certainties(scores: NDArray[np.float32], calibration: Calibration | None) -> NDArray[np.float64]:
    """Of each text, by the scores of its first labels, best first."""  # [N]
    if calibration is not None:
        probable = calibration.probabilities(scores)[:, :USUAL_K].astype(np.float64)
        return np.asarray(np.maximum(probable, 1 - probable).mean(1))
    return np.asarray((scores[:, :-1] - scores[:, 1:]).max(1, initial=0, where=np.isfinite(scores[:, 1:])), np.float64)


def review(
    classifier: Classifier, path: Path, most: int, *, field: str | None = None, progress: Advance = silent
) -> list[Doubt]:
    """The texts of a file whose answers are the least certain, these first; those that were learnt are left out."""
    known = {example.text for example in classifier.examples()}
    rows, found = InputRows(path, field=field), list[Doubt]()
    rule = None if classifier.calibration is None else "f1"
    width = min(USUAL_K + 1, classifier.labels.count())
    unread = iter(rows)
    while chunk := list(itertools.islice(unread, TEXTS_AT_A_TIME)):
        for bad in (row for row in chunk if isinstance(row, BadRow)):
            raise BadFile(path, f"{bad.problem}: {bad.content[:60]!r}; mend it, or leave it out", line=bad.line)
        texts = [text for text in dict.fromkeys(row.text for row in chunk if isinstance(row, Row)) if text not in known]
        known.update(texts)
        if texts:
            sure = certainties(classifier.rank(texts, width).scores, classifier.calibration)
            keys = ([label.key for label in one] for one in classifier.predict(texts, rule=rule))
            found = sorted([*found, *map(Doubt, sure.tolist(), texts, keys)], key=lambda doubt: doubt.certainty)[:most]
        progress(rows.position, rows.size)
    return found
