"""All lab runs of a folder as one HTML page that needs nothing else: claims one by one, then figures and words."""

import json
import re
from pathlib import Path
from typing import Any

from markupsafe import Markup

from lab import EXPERIMENTS
from lab.comparison import signed
from umpteen.compare.comparison import page_template
from umpteen.errors import BadFile, BadInput
from umpteen.evaluation.figures import inline
from umpteen.files.storage import write_atomically


def write_report(runs: Path, page: Path) -> list[dict[str, Any]]:
    """Writes the page; returns its claims, each with its experiment, dataset and size."""
    found = _read(runs)
    claims = [
        {"experiment": results["experiment"], "data": results["data"], "size": results["size"], **claim}
        for _, results in found
        for claim in results["claims"]
    ]
    template = page_template(Path(__file__).with_suffix(".html.jinja"), signed)
    sections = [_section(folder, folder.relative_to(runs).parts, results) for folder, results in found]
    write_atomically(page, template.render(claims=claims, sections=sections))
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


def _section(folder: Path, place: tuple[str, ...], results: dict[str, Any]) -> dict[str, Any]:
    """What the page shows of one experiment; its place below the folder of all tells it from others of its kind."""
    anchor = re.sub(r"[^\w-]+", "-", "-".join((results["experiment"], *place)))
    picture = folder / f"{results['experiment']}.svg"
    rows = results["results"]
    return results | {
        "anchor": anchor,
        "figure": Markup(inline(picture.read_text(encoding="utf-8"), anchor)) if picture.exists() else None,
        # Rows of named means with intervals; what has another form stays in results.json.
        "rows": rows if isinstance(rows, list) and all(isinstance(row, dict) for row in rows) else [],
        "settings": json.dumps(results["settings"], indent=1, ensure_ascii=False),
    }
