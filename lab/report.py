"""All lab runs of a folder as one HTML page that needs nothing else: claims one by one, then figures and words."""

import html
import json
import re
from pathlib import Path
from typing import Any

from lab import EXPERIMENTS
from lab.comparison import signed
from umpteen.errors import BadFile, BadInput
from umpteen.files.storage import write_atomically

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 3rem; border-top: 1px solid #ddd; padding-top: 1.5rem; }
table { border-collapse: collapse; width: 100%; font-size: 0.85rem; } th, td { text-align: left; vertical-align: top; }
th, td { padding: 0.4rem 0.6rem; border-bottom: 1px solid #ddd; } thead th { border-bottom: 2px solid #999; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.confirmed { color: #0b5fa5; } .refuted { color: #b3480a; } .undecided { color: #555; }
.confirmed, .refuted, .undecided { font-weight: 600; white-space: nowrap; }
figure { margin: 1.5rem 0; } figure svg { width: 100%; height: auto; } .wide { overflow-x: auto; }
code, pre { font-size: 0.85rem; } pre { background: #f5f5f5; padding: 0.8rem; overflow-x: auto; }
"""
SIGNS = {"confirmed": "✓ confirmed", "refuted": "✗ refuted", "undecided": "– undecided"}
INTRODUCTION = """<p>Each row puts one sentence of <em>Dual-Encoders for Extreme Multi-label Classification</em>
(ICLR 2024) to the test on data at hand. A claim is <b>confirmed</b> if the 95&nbsp;% interval of the difference it
speaks of lies above zero, <b>refuted</b> if it lies below, and <b>undecided</b> if it covers zero or there is only one
seed. Intervals are Student's over seeds, of paired differences where two things are compared; they say nothing of other
datasets. Figures are percentages on test unless they say otherwise. Runs of the size <em>tiny</em> only show that the
experiment works.</p>"""


def write_report(runs: Path, page: Path) -> list[dict[str, Any]]:
    """Writes the page; returns its claims, each with its experiment, dataset and size."""
    found = _read(runs)
    claims = [
        {"experiment": results["experiment"], "data": results["data"], "size": results["size"], **claim}
        for _, results in found
        for claim in results["claims"]
    ]
    body = [
        "<h1>The lab: the paper's claims, put to the test</h1>",
        INTRODUCTION,
        _counts(claims),
        _claims_table(found),
        *(_section(folder, results) for folder, results in found),
    ]
    write_atomically(
        page,
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>umpteen: the lab</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n",
    )
    return claims


def _read(runs: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Finished experiments below the folder, in the order of `python -m lab list`."""
    found = []
    for file in sorted(runs.glob("**/results.json")):
        try:
            results = json.loads(file.read_bytes())
        except ValueError as problem:
            raise BadFile(file, f"is not JSON ({problem}); run the experiment again") from None
        if isinstance(results, dict) and {"experiment", "claims", "summary"} <= results.keys():
            found.append((file.parent, results))
    if not found:
        raise BadInput(f"there are no results of `python -m lab run` below {runs}; give their folder as --runs")
    order = {name: place for place, name in enumerate(EXPERIMENTS)}
    return sorted(found, key=lambda item: (order.get(item[1]["experiment"], len(order)), item[1]["data"]))


def _counts(claims: list[dict[str, Any]]) -> str:
    parts = (f"{sum(claim['verdict'] == verdict for claim in claims)} {verdict}" for verdict in SIGNS)
    return f"<p>{len(claims)} claims: {', '.join(parts)}.</p>"


def _claims_table(found: list[tuple[Path, dict[str, Any]]]) -> str:
    rows = [
        f"<tr><td>{_escape(claim['claim'])}</td><td>{_escape(claim['paper'])}</td>"
        f'<td class="{claim["verdict"]}">{SIGNS[claim["verdict"]]}</td><td>{_escape(claim["ours"])}'
        f"{_difference(claim['difference'])}</td>"
        f'<td><a href="#{_anchor(results)}">{_escape(results["experiment"])}</a><br>{_escape(results["data"])}, '
        f"{results['size']}, seeds: {results['seeds']}</td></tr>"
        for _, results in found
        for claim in results["claims"]
    ]
    head = "<tr><th>claim</th><th>in the paper</th><th>verdict</th><th>here</th><th>experiment</th></tr>"
    return f'<div class="wide"><table><thead>{head}</thead><tbody>\n' + "\n".join(rows) + "\n</tbody></table></div>"


def _difference(difference: dict[str, Any] | None) -> str:
    return "" if difference is None else f"<br><small>difference {signed(difference)}</small>"


def _section(folder: Path, results: dict[str, Any]) -> str:
    name = results["experiment"]
    picture = folder / f"{name}.svg"
    figure = _inline(picture.read_text(encoding="utf-8"), _anchor(results)) if picture.exists() else ""
    settings = json.dumps(results["settings"], indent=1, ensure_ascii=False)
    return "\n".join(
        [
            f'<h2 id="{_anchor(results)}">{_escape(name)} on {_escape(results["data"])} ({results["size"]})</h2>',
            f"<figure>{figure}</figure>" if figure else "",
            f"<p>{_escape(results['summary'])}</p>",
            _results_table(results["results"]),
            f"<pre>{_escape(results['command'])}</pre>",
            f"<p>Seeds: {results['seeds']}. All runs together took {results['seconds'] / 60:,.1f} minutes with version "
            f"{_escape(results['version'])}.</p>",
            f"<details><summary>settings</summary><pre>{_escape(settings)}</pre></details>",
        ]
    )


def _results_table(results: Any) -> str:
    """Rows of named means with intervals; what has another form stays in results.json."""
    if not (isinstance(results, list) and results and all(isinstance(row, dict) for row in results)):
        return ""
    columns = list(results[0])
    head = "".join(
        f"<th{' class=number' if _is_figure(results[0][column]) else ''}>{_escape(str(column))}</th>"
        for column in columns
    )
    rows = "".join(f"<tr>{''.join(_cell(row.get(column)) for column in columns)}</tr>\n" for row in results)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table></div>'


def _is_figure(value: Any) -> bool:
    return isinstance(value, dict) and "mean" in value


def _cell(value: Any) -> str:
    if _is_figure(value):
        low, high = value.get("interval") or (None, None)
        interval = "" if low is None else f"<br><small>{low:.2f} to {high:.2f}</small>"
        return f'<td class="number">{value["mean"]:.2f}{interval}</td>'
    if isinstance(value, dict):
        value = ", ".join(f"{key} {part}" for key, part in value.items())
    return f"<td>{_escape(str(value))}</td>"


def _inline(svg: str, prefix: str) -> str:
    """The drawing without its XML head, its names made unique on the page."""
    drawing = svg[svg.index("<svg") :]
    drawing = re.sub(r'\bid="', f'id="{prefix}-', drawing)
    drawing = re.sub(r'href="#', f'href="#{prefix}-', drawing)
    return re.sub(r"url\(#", f"url(#{prefix}-", drawing)


def _anchor(results: dict[str, Any]) -> str:
    return re.sub(
        r"[^\w-]+", "-", "-".join((results["experiment"], results["data"], results["size"], str(results["seeds"])))
    )


def _escape(text: str) -> str:
    return html.escape(text)
