"""A comparison as one HTML page that needs no other file, with accuracy against cost (the paper's figure 1)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from umpteen.evaluation.figures import NO_FIGURE, Point, Points, bare_axes, inline, render
from umpteen.files.storage import write_atomically

METRICS = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@5", "R@10", "R@100")
COSTS = {"train_seconds": "training time, seconds", "parameters": "parameters"}


def write_page(path: Path, outcome: dict[str, Any]) -> None:
    """Writes the page; it shows what is in `outcome` and computes nothing."""
    metrics = shown_metrics(outcome)
    template = page_template(Path(__file__).with_suffix(".html.jinja"), short_number, _signed, _seconds)
    page = template.render(
        outcome,
        metrics=metrics,
        best={metric: max(result["metrics"][metric] for result in outcome["results"]) for metric in metrics},
        figures={what: draw_tradeoff(outcome["results"], cost, what) for cost, what in COSTS.items()},
        no_figure=NO_FIGURE,
    )
    write_atomically(path, page)


def page_template(file: Path, *filters: Callable[..., str]) -> Template:
    """The Jinja template of a page, which escapes what it is given, and may call the filters by their names."""
    templates = Environment(
        loader=FileSystemLoader(file.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters.update({function.__name__.strip("_"): function for function in filters})
    return templates.get_template(file.name)


def draw_tradeoff(results: list[dict[str, Any]], cost: str, what: str) -> Markup:
    """P@1 against a cost on a logarithmic axis, as SVG for a page; a cost of 0 stands at the left end.

    What is less than half as good as the best stands at the foot with its value: it would press the rest together.
    """
    best = max(result["metrics"]["P@1"] for result in results)
    least = min((result[cost] for result in results if result[cost] > 0), default=1.0)
    foot = min(result["intervals"]["P@1"][0] for result in results if result["metrics"]["P@1"] >= best / 2)
    points = []
    for result in results:
        name, value, interval = result["method"], result["metrics"]["P@1"], result["intervals"]["P@1"]
        if value < best / 2:
            name, value, interval = f"{name} ({value:.1f}, below)", foot, None
        points.append(Point(name, result[cost] or least, value, 0 if result["ours"] else 1, interval))
    drawn = Points(points, x=f"{what} (logarithmic)", y="P@1, %", log_x=True)
    image = render(lambda figure: drawn.draw_on(bare_axes(figure)), size=(6.4, 4.0), kinds=["svg"])
    return Markup(inline(image["svg"].decode(), cost)) if image else Markup()


def short_number(value: float) -> str:
    """1,200,000 as 1.2M: three digits at most."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def shown_metrics(outcome: dict[str, Any]) -> list[str]:
    """Those of the usual metrics that the dataset is large enough for."""
    return [metric for metric in METRICS if all(metric in result["metrics"] for result in outcome["results"])]


def _signed(value: float, digits: int = 2) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def _seconds(value: float) -> str:
    return f"{value:,.1f}" if value >= 1 else f"{value:.2g}"
