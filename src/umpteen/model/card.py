"""The README.md of a model folder: what the model is, what it was trained on, how good it is, how to use it."""

import re
from typing import Any

from umpteen.evaluation.report import Report
from umpteen.version import __version__

_METRICS = ("P", "nDCG", "R", "PSP", "PSnDCG")


def model_card(files: str, settings: dict[str, Any], report: Report | None, recipe: str | None) -> str:
    """Markdown for the settings of a manifest, the report and the recipe of the model whose files are in a folder."""
    sections = [_FRONT_MATTER, _summary(settings), _usage(files, settings)]
    if report is not None:
        sections.append(_metrics(report))
    if recipe is not None:
        sections.append(f"## Recipe\n\n```toml\n{recipe.strip()}\n```\n")
    return "\n".join(sections)


def with_ranker(card: str, ranker: dict[str, Any] | None) -> str:
    """The card with its last section saying what the ranker is, or without that section; the rest stays as it is."""
    rest = card.partition(_RANKER)[0].rstrip() + "\n"
    if ranker is None:
        return rest
    lines = [f"- {name.replace('_', ' ')}: {value}" for name, value in ranker.items()]
    return "\n".join([rest + _RANKER, *lines, ""])


_FRONT_MATTER = """---
library_name: umpteen
pipeline_tag: text-classification
tags: [umpteen, extreme-classification, sentence-transformers]
---
"""


_RANKER = """
## Ranker

Linear weights a label on the words of a text (tf-idf of n-grams) put the encoder's first labels in order; a score is
(1 − weight) · inner product + weight · the ranker's score. `Classifier.load(folder, ranker=False)` leaves it out.
"""


def with_labels(card: str, files: str, settings: dict[str, Any]) -> str:
    """The card with its lines about the labels and where they are brought up to date, where they still stand."""
    card = re.sub(r"\bmodel-[0-9a-f]{8}\b", files, card)
    card = re.sub(r"^# A text classifier over [\d,]+ labels$", _title(settings), card, count=1, flags=re.M)
    return re.sub(r"^- labels: .*, in labels\.db.*$", _labels(settings), card, count=1, flags=re.M)


def _title(settings: dict[str, Any]) -> str:
    return f"# A text classifier over {settings['labels'] - settings.get('retired_labels', 0):,} labels"


def _labels(settings: dict[str, Any]) -> str:
    retired = settings.get("retired_labels", 0)
    line = f"- labels: {settings['labels'] - retired:,}, in labels.db"
    if retired:
        line += f", and {retired:,} retired ones"
    if settings["labels_version"]:
        line += f"; version {settings['labels_version']} of the labels, which were changed after training"
    return line


def _summary(settings: dict[str, Any]) -> str:
    data = settings.get("data", {})
    licence = data.get("licence", "not stated; it follows from the data's and from the encoder this one started from")
    lines = [
        _title(settings) + "\n",
        f"Made with umpteen {__version__}. Text and labels become vectors of {settings['dimension']} numbers;"
        " a label's score is the inner product.\n",
        f"- encoder: {settings['encoder']}",
        _labels(settings),
    ]
    lines += [f"- data {name.replace('_', ' ')}: {value}" for name, value in data.items() if name != "licence"]
    lines += [
        f"- training {name.replace('_', ' ')}: {_written(value)}"
        for name, value in settings.get("training", {}).items()
        if value is not None
    ]
    return "\n".join([*lines, f"- licence: {licence}", ""])


def _written(value: Any) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in value.items()) if isinstance(value, dict) else str(value)


def _usage(files: str, settings: dict[str, Any]) -> str:
    encode = "encode" if settings["shared_towers"] else "encode_query"
    # sentence-transformers takes a module of ours only when told so.
    trust = ", trust_remote_code=True" if "bigrams" in settings["encoder"] else ""
    return f"""## Use

```python
from umpteen import Classifier

classifier = Classifier.load("this-folder")
classifier.predict(["a text"], k=5)  # for each text its labels: key, text, score, probability
```

Labels can be added, renamed and retired without training, here or with `umpteen labels`; only changed texts are
encoded, and every version can be brought back:

```python
classifier.add_labels({{"key": "the text of a new label"}})  # on disk when it returns
classifier.undo()
```

`umpteen verify this-folder` checks every file. Without umpteen, the encoder loads in sentence-transformers
(hashed bigrams need umpteen installed), and row i of the vectors belongs to row i of labels.db, an SQLite file. Later
changes of labels stand in {files}.db; `umpteen labels compact this-folder` folds them into these two:

```python
import sqlite3
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

encoder = SentenceTransformer("this-folder/{files}/encoder"{trust})
vectors = load_file("this-folder/{files}/vectors.safetensors")["vectors"]
database = sqlite3.connect("this-folder/{files}/labels.db")
labels = database.execute("SELECT key, text FROM labels ORDER BY row").fetchall()
scores = encoder.{encode}(["a text"], convert_to_tensor=True).cpu() @ vectors.T
```
"""


def _metrics(report: Report) -> str:
    ks = sorted({int(name.partition("@")[2]) for name in report.metrics})
    lines = [
        "## Metrics\n",
        f"In percent, 95 % bootstrap intervals in brackets; {report.queries:,} queries"
        f" ({report.queries_left_out:,} without positives left out);"
        f" propensity A = {report.propensity['A']}, B = {report.propensity['B']}.\n",
        "| k | " + " | ".join(_METRICS) + " |",
        "|---" * (len(_METRICS) + 1) + "|",
    ]
    lines += [f"| {k} | " + " | ".join(_cell(report, f"{metric}@{k}") for metric in _METRICS) + " |" for k in ks]
    return "\n".join([*lines, ""])


def _cell(report: Report, metric: str) -> str:
    if metric not in report.metrics:
        return ""
    value = f"{report.metrics[metric]:.2f}"
    if metric not in report.intervals:
        return value
    low, high = report.intervals[metric]
    return f"{value} [{low:.2f}, {high:.2f}]"
