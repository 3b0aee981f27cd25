"""Charts as SVG, drawn without a plotting library: curves and points, each with its name beside it."""

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from umpteen.files.storage import write_atomically

# Apart in hue and in lightness, so that they stay apart in grey and for the colour-blind.
COLOURS = ("#0b5fa5", "#d9730d", "#4f8a10", "#7a3e9d", "#8c6d1f", "#777777", "#c2185b", "#1a9aa8")
WIDTH, HEIGHT = 480, 340
LEFT, RIGHT, TOP, BOTTOM = 58, WIDTH - 14, 30, HEIGHT - 46  # of the frame
LINE = 13  # between two names
LETTER = 6.2  # as wide as most are, in a font of 11


class Series(NamedTuple):
    """A curve, or a single point, which may have an interval of its y."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int = 0  # which of COLOURS
    dashed: bool = False  # and then without marks
    interval: Sequence[float] | None = None


class Axis(NamedTuple):
    """Values from one end to the other, at places from `start` to `stop`."""

    low: float
    high: float
    start: float
    stop: float
    log: bool

    @classmethod
    def over(cls, values: Sequence[float], start: float, stop: float, *, log: bool = False) -> "Axis":
        """All the values and some room at both ends."""
        ends = min(values), max(values)
        low, high = map(math.log10, ends) if log else ends
        room = 0.06 * (high - low) or 0.5
        return cls(low - room, high + room, start, stop, log)

    def at(self, value: float) -> float:
        value = math.log10(value) if self.log else value
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)

    def ticks(self) -> list[float]:
        """About six round numbers; powers of ten along a logarithmic axis that has some."""
        rough = (self.high - self.low) / 6
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(size * times for times in (1, 2, 5, 10) if size * times >= rough)
        if self.log and self.high - self.low > 1:
            step = max(1.0, round(step))
        found = [step * number for number in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [10.0**tick for tick in found] if self.log else found


def chart(
    series: Sequence[Series],
    *,
    x: str,
    y: str,
    title: str = "",
    limits: tuple[float, float] | None = None,
    log_x: bool = False,
) -> str:
    """One frame with its axes, for a page or a `figure`; `limits` are those of y."""
    points = [point for each in series for point in each.points]
    heights = [value for each in series for value in (each.interval or ())] + [value for _, value in points]
    across = Axis.over([place for place, _ in points], LEFT, RIGHT, log=log_x)
    up = Axis(*limits, BOTTOM, TOP, log=False) if limits else Axis.over(heights, BOTTOM, TOP)
    drawn = [f'<rect x="{LEFT}" y="{TOP}" width="{RIGHT - LEFT}" height="{BOTTOM - TOP}" fill="none" stroke="#aaa"/>']
    drawn += [_text(across.at(tick), BOTTOM + 16, f"{tick:.4g}", "middle") for tick in across.ticks()]
    for tick in up.ticks():
        drawn.append(f'<path d="M{LEFT} {up.at(tick):.1f}H{RIGHT}" stroke="#aaa" stroke-opacity=".35"/>')
        drawn.append(_text(LEFT - 6, up.at(tick) + 4, f"{tick:.4g}", "end"))
    drawn.append(_text((LEFT + RIGHT) / 2, HEIGHT - 10, x, "middle"))
    drawn.append(_text((LEFT + RIGHT) / 2, TOP - 12, title, "middle"))
    drawn.append(f'<g transform="rotate(-90 14 {HEIGHT / 2})">{_text(14, HEIGHT / 2, y, "middle")}</g>')
    names: list[tuple[float, float, float]] = []  # left and right end, and height
    for each in series:
        colour = COLOURS[each.colour % len(COLOURS)]
        places = [(across.at(place), up.at(value)) for place, value in each.points]
        line = " ".join(f"{place:.1f},{height:.1f}" for place, height in places)
        dashes = ' stroke-dasharray="6 4"' if each.dashed else ""
        drawn.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        if each.interval is not None:
            low, high = map(up.at, each.interval)
            drawn.append(f'<path d="M{places[0][0]:.1f} {low:.1f}V{high:.1f}" stroke="{colour}" stroke-width="2"/>')
        if not each.dashed:
            drawn += [f'<circle cx="{place:.1f}" cy="{height:.1f}" r="3" fill="{colour}"/>' for place, height in places]
        drawn.append(_name(each.name, *places[-1], colour, names))
    return f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">{"".join(drawn)}</svg>'


def _name(name: str, place: float, height: float, colour: str, names: list[tuple[float, float, float]]) -> str:
    """Beside the point, on the side that has room, as near to it as the names before let it be."""
    width = LETTER * len(name)
    left = place + 6 if place + 6 + width <= WIDTH else max(4.0, place - 6 - width)
    near = [round(height) - 4 + offset * LINE for lines in range(len(names) + 2) for offset in (lines, -lines)]
    inside = [at for at in near if TOP + LINE <= at <= BOTTOM - 4] or near

    def covered(at: float) -> bool:
        return any(abs(at - other) < LINE and left < stop and start < left + width for start, stop, other in names)

    free = next((at for at in inside if not covered(at)), inside[0])
    names.append((left, left + width, free))
    return _text(left, free, name, "start", colour)


def _text(place: float, height: float, text: str, anchor: str, colour: str = "currentColor") -> str:
    style = f'font-family="sans-serif" font-size="11" text-anchor="{anchor}" fill="{colour}"'
    return f'<text x="{place:.1f}" y="{height:.1f}" {style}>{escape(text)}</text>'


def write_figure(path: Path, charts: Sequence[str], *, title: str) -> None:
    """The charts side by side in a file of their own, under one title."""
    width, height = WIDTH * len(charts), HEIGHT + 24
    placed = "".join(f'<g transform="translate({at * WIDTH} 24)">{each}</g>' for at, each in enumerate(charts))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    paper = f'<rect width="{width}" height="{height}" fill="white"/>'
    write_atomically(path, f"{head}{paper}{_text(width / 2, 20, title, 'middle', 'black')}{placed}</svg>\n")
