"""A comparison as one HTML page that needs no other file: the table, the differences, the trade-offs, the trials."""

from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from umpteen.comparing.tradeoff import Dot, draw_tradeoff, short_number
from umpteen.storage import write_atomically

METRICS = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@5", "R@10", "R@100")

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --paper: #fff; --faint: #666; --rule: #ddd; --ours: #0b5fa5;
  --theirs: #b35a00; --better: #2c6e0f; --worse: #a11; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --paper: #151515; --faint: #aaa; --rule: #3a3a3a;
  --ours: #6db3f2; --theirs: #f0a050; --better: #8fd16a; --worse: #ff8a80; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 80rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p { max-width: 46rem; } .facts { color: var(--faint); margin-top: 0; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .5rem; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } thead th { border-bottom: 2px solid var(--ink); }
tr.ours td:first-child { color: var(--ours); font-weight: 600; }
td.best { font-weight: 700; } small { color: var(--faint); display: block; font-size: .75rem; }
td.better { color: var(--better); } td.worse { color: var(--worse); }
.figures { display: flex; flex-wrap: wrap; gap: 1.5rem; } figure { margin: 0; flex: 1 1 26rem; }
figcaption { color: var(--faint); font-size: .9rem; } .figure { width: 100%; height: auto; font: 12px system-ui; }
.figure text { fill: var(--ink); paint-order: stroke; stroke: var(--paper); stroke-width: 3px; }
.figure .tick { fill: var(--faint); font-size: 11px; }
.figure .grid { stroke: var(--rule); } .figure .interval { stroke-width: 2; opacity: .5; }
.figure .ours { fill: var(--ours); } .figure .theirs { fill: var(--theirs); }
.figure line.ours { stroke: var(--ours); } .figure line.theirs { stroke: var(--theirs); }
summary { cursor: pointer; } code { font-size: .9em; }
"""


def write_page(path: Path, outcome: dict[str, Any]) -> None:
    """Writes the page; it shows what is in `outcome` and computes nothing."""
    title = f"{outcome['dataset']}: umpteen beside what users run today"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="facts">{escape(_facts(outcome))}</p>',
        _results(outcome),
        _skipped(outcome),
        _differences(outcome),
        _figures(outcome),
        _trials(outcome),
        _how(outcome),
    ]
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
    )
    write_atomically(path, page + "\n".join(part for part in body if part) + "\n</body>\n</html>\n")


def shown_metrics(outcome: dict[str, Any]) -> list[str]:
    """Those of the usual metrics that the dataset is large enough for."""
    return [metric for metric in METRICS if all(metric in result["metrics"] for result in outcome["results"])]


def _facts(outcome: dict[str, Any]) -> str:
    left_out = outcome["test_queries_left_out"]
    without = f" ({left_out:,} without positives left out)" if left_out else ""
    return (
        f"{outcome['train_queries']:,} training queries, {outcome['validation_queries']:,} of them for validation; "
        f"{outcome['test_queries']:,} test queries{without}; {outcome['labels']:,} labels. "
        f"Up to {outcome['trials']} trials a method, chosen by {outcome['metric']} on validation."
    )


def _results(outcome: dict[str, Any]) -> str:
    metrics = shown_metrics(outcome)
    best = {metric: max(result["metrics"][metric] for result in outcome["results"]) for metric in metrics}
    rows = []
    for result in outcome["results"]:
        cells = [escape(result["method"])]
        for metric in metrics:
            low, high = result["intervals"][metric]
            mark = ' class="best"' if result["metrics"][metric] == best[metric] else ""
            cells.append(f"<td{mark}>{result['metrics'][metric]:.2f}<small>{low:.1f} – {high:.1f}</small></td>")
        cells += [_seconds(result["train_seconds"]), _seconds(result["predict_seconds"])]
        cells.append(short_number(result["parameters"]))
        rows.append(_row(cells, "ours" if result["ours"] else ""))
    heads = ["method", *metrics, "train, s", "predict, s", "parameters"]
    note = "In percent, with 95 % intervals from resampled test queries; the best of each column in bold."
    return f"<h2>On test</h2>\n{_table(heads, rows)}\n<p>{note}</p>"


def _differences(outcome: dict[str, Any]) -> str:
    metrics = shown_metrics(outcome)
    rows = []
    for result in outcome["results"]:
        if not result["differences"]:
            continue
        cells = [escape(result["method"])]
        for metric in metrics:
            difference = result["differences"][metric]
            low, high = difference["interval"]
            kind = "better" if low > 0 else "worse" if high < 0 else ""
            interval = f"{_signed(low, 1)} to {_signed(high, 1)}"
            cells.append(f'<td class="{kind}">{_signed(difference["value"])}<small>{interval}</small></td>')
        rows.append(_row(cells, "ours" if result["ours"] else ""))
    if not rows:
        return ""
    reference = escape(outcome["reference"])
    note = (
        f"Each method minus <b>{reference}</b>, the best of ours on validation, in percent points, with 95 % "
        "intervals from the same resampled queries for both. Coloured where the interval leaves 0 out; below 0, "
        "ours is better."
    )
    return f"<h2>Paired differences</h2>\n{_table(['method', *metrics], rows)}\n<p>{note}</p>"


def _skipped(outcome: dict[str, Any]) -> str:
    items = "".join(
        f"<li><b>{escape(skip['method'])}</b>: {escape(skip['reason'])}</li>" for skip in outcome["skipped"]
    )
    return f"<h2>Left out</h2>\n<ul>{items}</ul>" if items else ""


def _figures(outcome: dict[str, Any]) -> str:
    figures = []
    for cost, unit in (("train_seconds", "training time, seconds"), ("parameters", "parameters")):
        dots = [
            Dot(
                result["method"],
                result[cost],
                result["metrics"]["P@1"],
                tuple(result["intervals"]["P@1"]),
                result["ours"],
            )
            for result in outcome["results"]
        ]
        title = f"P@1 against {unit}"
        figures.append(
            f"<figure>{draw_tradeoff(dots, title=title, x=unit + ' (logarithmic)', y='P@1, %')}"
            f"<figcaption>{title}, with 95 % intervals. Up and to the left is better.</figcaption></figure>"
        )
    return f'<h2>What it costs</h2>\n<div class="figures">{"".join(figures)}</div>'


def _trials(outcome: dict[str, Any]) -> str:
    metric, rows = outcome["metric"], []
    for result in outcome["results"]:
        for trial in result["trials"]:
            chosen = trial["settings"] == result["settings"]
            settings = f"<code>{escape(' '.join(trial['settings']) or 'nothing to set')}</code>"
            cells = [escape(result["method"]), f'<td style="text-align:left">{settings}</td>']
            cells += [f"{trial['metrics'][metric]:.2f}", f"{trial['seconds']:,.1f}", "chosen" if chosen else ""]
            rows.append(_row(cells, "ours" if result["ours"] else ""))
    table = _table(["method", "settings", f"{metric} on validation", "seconds", ""], rows)
    return f"<h2>Trials</h2>\n<details><summary>All settings that were tried</summary>\n{table}</details>"


def _how(outcome: dict[str, Any]) -> str:
    constants = ", ".join(f"{name} = {value}" for name, value in outcome["propensity"].items())
    return (
        "<h2>How this was made</h2>\n<p>Every method is tuned on the same validation queries, taken from train, fitted "
        "once more on all of train with the settings that did best there, and asked about test once. Parameters are "
        "the numbers that fitting sets: a dual encoder's weights, a linear model's weights that pruning left, the "
        "tf-idf weights that nearest neighbours keep, one count a label for popularity. Times are of this machine, "
        f"whatever else it was doing. PSP uses {constants}; seed {outcome['seed']}.</p>"
    )


def _signed(value: float, digits: int = 2) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def _seconds(value: float) -> str:
    return f"{value:,.1f}" if value >= 1 else f"{value:.2g}"


def _table(heads: Iterable[str], rows: Iterable[str]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "\n".join(rows)
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def _row(cells: Iterable[str], kind: str) -> str:
    inner = "".join(cell if cell.startswith("<td") else f"<td>{cell}</td>" for cell in cells)
    return f'<tr class="{kind}">{inner}</tr>'
