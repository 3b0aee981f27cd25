"""The README.md of a model folder: what the model is, what it was trained on, how good it is, how to use it."""

import re
from pathlib import Path
from string import Template
from typing import Any

from umpteen.evaluation.report import Report
from umpteen.version import __version__

_METRICS = ("P", "nDCG", "R", "PSP", "PSnDCG")
_RANKER = """
## Ranker

Linear weights a label on the words of a text (tf-idf of n-grams) put the encoder's first labels in order; a score is
(1 − weight) · inner product + weight · the ranker's score. `Classifier.load(folder, ranker=False)` leaves it out.
"""


def model_card(files: str, settings: dict[str, Any], report: Report | None, recipe: str | None) -> str:
    """Markdown for the settings of a manifest, the report and the recipe of the model whose files are in a folder."""
    data = {"licence": "not stated; it follows from the data's and from the encoder this one started from"}
    data |= settings.get("data", {})
    facts = [f"- encoder: {settings['encoder']}", _labels(settings)]
    facts += [f"- data {name.replace('_', ' ')}: {value}" for name, value in data.items() if name != "licence"]
    for name, value in settings.get("training", {}).items():
        said = ", ".join(f"{key} {n:,}" for key, n in value.items()) if isinstance(value, dict) else value
        facts += [] if value is None else [f"- training {name.replace('_', ' ')}: {said}"]
    card = Template(Path(__file__).with_suffix(".md").read_text(encoding="utf-8")).substitute(
        title=_title(settings),
        version=__version__,
        dimension=settings["dimension"],
        facts="\n".join([*facts, f"- licence: {data['licence']}"]),
        files=files,
        encode="encode" if settings["shared_towers"] else "encode_query",
        # sentence-transformers takes a module of ours only when told so.
        trust=", trust_remote_code=True" if "bigrams" in settings["encoder"] else "",
    )
    card += "" if report is None else "\n" + _metrics(report)
    return card if recipe is None else f"{card}\n## Recipe\n\n```toml\n{recipe.strip()}\n```\n"


def with_ranker(card: str, ranker: dict[str, Any] | None) -> str:
    """The card with its last section saying what the ranker is, or without that section; the rest stays as it is."""
    rest = card.partition(_RANKER)[0].rstrip() + "\n"
    if ranker is None:
        return rest
    lines = [f"- {name.replace('_', ' ')}: {value}" for name, value in ranker.items()]
    return "\n".join([rest + _RANKER, *lines, ""])


def with_labels(card: str, files: str, settings: dict[str, Any]) -> str:
    """The card with its lines about the labels and where they are brought up to date, where they still stand."""
    card = re.sub(r"\bmodel-[0-9a-f]{8}\b", files, card)
    card = re.sub(r"^# A text classifier over [\d,]+ labels$", _title(settings), card, count=1, flags=re.M)
    return re.sub(r"^- labels: .*, in labels\.db.*$", _labels(settings), card, count=1, flags=re.M)


def _title(settings: dict[str, Any]) -> str:
    return f"# A text classifier over {settings['labels'] - settings.get('retired_labels', 0):,} labels"


def _labels(settings: dict[str, Any]) -> str:
    retired, version = settings.get("retired_labels", 0), settings["labels_version"]
    line = f"- labels: {settings['labels'] - retired:,}, in labels.db"
    line += f", and {retired:,} retired ones" if retired else ""
    return line + (f"; version {version} of the labels, which were changed after training" if version else "")


def _metrics(report: Report) -> str:
    lines = [
        "## Metrics\n",
        f"In percent, 95 % bootstrap intervals in brackets; {report.queries:,} queries"
        f" ({report.queries_left_out:,} without positives left out);"
        f" propensity A = {report.propensity['A']}, B = {report.propensity['B']}.\n",
        "| k | " + " | ".join(_METRICS) + " |",
        "|---" * (len(_METRICS) + 1) + "|",
    ]
    for k in sorted({int(name.partition("@")[2]) for name in report.metrics}):
        cells = []
        for name in (f"{metric}@{k}" for metric in _METRICS):
            cell = f"{report.metrics[name]:.2f}" if name in report.metrics else ""
            low, high = report.intervals.get(name, (None, None))
            cells.append(f"{cell} [{low:.2f}, {high:.2f}]" if cell and low is not None else cell)
        lines.append(f"| {k} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])
