"""Accuracy against what it costs, one dot a method, as an SVG that needs nothing else (the paper's figure 1)."""

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

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
