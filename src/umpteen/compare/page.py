"""A comparison as one HTML page that needs no other file, with accuracy against cost (the paper's figure 1)."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from umpteen.files.storage import write_atomically

_WIDTH, _HEIGHT = 560, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 24, 20, 52
_LETTER = 6.6  # width of a letter of a label, about
_LINE = 14  # height of a label


class Dot(NamedTuple):
    """One method: what it costs, how good it is, and its 95 % interval."""

    name: str
    cost: float
    value: float
    interval: tuple[float, float]
    ours: bool


def draw_tradeoff(dots: Sequence[Dot], *, title: str, x: str, y: str) -> str:
    """The figure; costs are on a logarithmic axis, and a cost of 0 stands at its left end.

    What is less than half as good as the best stands at the foot with its value: it would press the rest together.
    """
    positive = [dot.cost for dot in dots if dot.cost > 0] or [1.0]
    first, last = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    last = max(last, first + 1)
    best = max(dot.value for dot in dots)
    shown = [dot for dot in dots if dot.value >= best / 2]
    low, high = _round_limits(min(dot.interval[0] for dot in shown), max(dot.interval[1] for dot in shown))

    def across(cost: float) -> float:
        share = (math.log10(cost) - first) / (last - first) if cost > 0 else 0.0
        return _LEFT + max(0.0, share) * (_WIDTH - _LEFT - _RIGHT)

    def up(value: float) -> float:
        return _HEIGHT - _BOTTOM - max(0.0, value - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}" class="figure">',
        f"<title>{escape(title)}</title>",
    ]
    for value in _ticks(low, high):
        parts.append(_line(_LEFT, up(value), _WIDTH - _RIGHT, up(value), "grid"))
        parts.append(_text(_LEFT - 8, up(value) + 4, f"{value:g}", "tick", "end"))
    for power in range(first, last + 1):
        parts.append(_line(across(10.0**power), _TOP, across(10.0**power), _HEIGHT - _BOTTOM, "grid"))
        parts.append(_text(across(10.0**power), _HEIGHT - _BOTTOM + 18, short_number(10.0**power), "tick", "middle"))
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 10, x, "axis", "middle"))
    parts.append(f'<g transform="rotate(-90 14 {_HEIGHT / 2})">{_text(14, _HEIGHT / 2, y, "axis", "middle")}</g>')
    places = [(across(dot.cost), up(dot.value)) for dot in dots]
    taken = [(px - 7, py - 7, px + 7, py + 7) for px, py in places]
    taken += [
        (px - 1, up(dot.interval[1]), px + 1, up(dot.interval[0])) for dot, (px, _) in zip(dots, places, strict=True)
    ]
    for dot, (px, py) in zip(dots, places, strict=True):
        kind = "ours" if dot.ours else "theirs"
        parts.append(_line(px, up(dot.interval[0]), px, up(dot.interval[1]), f"interval {kind}"))
        parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="5" class="{kind}"/>')
        name = dot.name if dot in shown else f"{dot.name} ({dot.value:.1f}, below)"
        lx, ly, anchor = _place(name, px, py, taken)
        parts.append(_text(lx, ly, name, f"name {kind}", anchor))
    return "\n".join([*parts, "</svg>"])


def short_number(value: float) -> str:
    """1,200,000 as 1.2M: three digits at most."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


Box = tuple[float, float, float, float]


def _place(name: str, x: float, y: float, taken: list[Box]) -> tuple[float, float, str]:
    """The place beside the dot, inside the frame, where the name covers the fewest other things."""
    width = _LETTER * len(name)
    choices = [
        (x + dx, y + dy, anchor)
        for dy in (4.0, -8.0, 16.0, -22.0, 30.0, -36.0)
        for dx, anchor in ((10.0, "start"), (-10.0, "end"))
    ]

    def box(choice: tuple[float, float, str]) -> Box:
        left = choice[0] if choice[2] == "start" else choice[0] - width
        return left, choice[1] - _LINE + 3, left + width, choice[1] + 3

    def trouble(choice: tuple[float, float, str]) -> tuple[bool, int]:
        left, top, right, bottom = box(choice)
        outside = left < 2 or right > _WIDTH - 2 or top < 2 or bottom > _HEIGHT - _BOTTOM
        return outside, sum(_meet(box(choice), other) for other in taken)

    chosen = min(choices, key=trouble)  # of equals the first, which is the nearest
    taken.append(box(chosen))
    return chosen


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _round_limits(low: float, high: float) -> tuple[float, float]:
    step = _step(high - low)
    return math.floor(low / step) * step, max(math.ceil(high / step), math.floor(low / step) + 1) * step


def _ticks(low: float, high: float) -> list[float]:
    step = _step(high - low)
    return [low + number * step for number in range(round((high - low) / step) + 1)]


def _step(span: float) -> float:
    """1, 2 or 5 times a power of ten, so that about five steps cover the span."""
    size = 10.0 ** math.floor(math.log10(max(span, 1e-9) / 5))
    return next(factor * size for factor in (1, 2, 5, 10) if factor * size * 5 >= span - 1e-9)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _text(x: float, y: float, text: str, kind: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


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
