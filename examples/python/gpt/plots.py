"""Plots as inline SVG: text, no scripts. What stands for a figure has the class "mark"."""

import math
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 480, 62, 12, 12, 40


@dataclass(frozen=True)
class Series:
    """Figures of one name and colour; a line has one for each step, dots one for each row."""

    name: str
    color: str
    values: tuple[float, ...]


def _finite(values: "list[float] | tuple[float, ...]") -> list[float]:
    return [value for value in values if math.isfinite(value)]


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from low to high, about so many, in steps of 1, 2 or 5 powers of ten."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * k for k in (1, 2, 5, 10) if unit * k >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between low and high."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [k * 10.0**power for power in powers for k in (1, 2, 5)]
    return [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]


def _text(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _frame(height: int, title: str, parts: list[str]) -> str:
    """An SVG as wide as its place; its title is what a screen reader says."""
    body = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">\n'
        f"<title>{escape(title)}</title>\n{body}\n</svg>"
    )


def _nothing(title: str) -> str:
    return _frame(60, title, [_text(WIDTH / 2, 35, "no finite figures")])


def _grid_y(ticks: list[float], at: "dict[float, float]") -> list[str]:
    parts = []
    for tick in ticks:
        y = at[tick]
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(_text(LEFT - 6, y + 4, f"{tick:g}", "end"))
    return parts


def _pieces(points: "list[tuple[float, float]]") -> "list[list[tuple[float, float]]]":
    """Runs of finite points: a line has a gap where a figure is not finite."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if math.isfinite(y):
            pieces[-1].append((x, y))
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _curve(one: Series, points: "list[tuple[float, float]]") -> str:
    if len(points) == 1:
        (x, y), kind = points[0], "circle"
        shape = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{one.color}"'
    else:
        path, kind = " ".join(f"{x:.1f},{y:.1f}" for x, y in points), "polyline"
        shape = f'<polyline points="{path}" fill="none" stroke="{one.color}"'
    return f'{shape} class="mark"><title>{escape(one.name)}</title></{kind}>'


def lines(series: list[Series], title: str, x_label: str, height: int = 300) -> str:
    """A curve for each series, over steps that count from 1."""
    finite = _finite([value for one in series for value in one.values])
    if not finite:
        return _nothing(title)
    low, high = min(finite), max(finite)
    pad = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    low, high = low - pad, high + pad
    steps = max(len(one.values) for one in series)
    wide, deep = WIDTH - LEFT - RIGHT, height - TOP - BOTTOM

    def x(step: float) -> float:
        return LEFT + (wide * (step - 1) / (steps - 1) if steps > 1 else wide / 2)

    def y(value: float) -> float:
        return TOP + deep * (high - value) / (high - low) if math.isfinite(value) else value

    ticks = nice_ticks(low, high)
    parts = _grid_y(ticks, {tick: y(tick) for tick in ticks})
    across = [tick for tick in nice_ticks(1, steps) if tick == round(tick)]
    parts += [_text(x(tick), height - BOTTOM + 18, f"{tick:g}") for tick in across]
    parts.append(_text(LEFT + wide / 2, height - 5, x_label))
    for one in series:
        points = [(x(step), y(value)) for step, value in enumerate(one.values, 1)]
        parts += [_curve(one, piece) for piece in _pieces(points)]
    return _frame(height, title, parts)


def dots(rows: list[str], series: list[Series], title: str, x_label: str) -> str:
    """A dot for each row and series, along a logarithmic axis. A figure of 0 has no place on
    it, and no dot."""
    shown = [value for one in series for value in _finite(one.values) if value > 0]
    if not shown:
        return _nothing(title)
    left, line = 128, 34
    low, high = min(shown) / 1.3, max(shown) * 1.3
    wide, height = WIDTH - left - RIGHT, TOP + line * len(rows) + BOTTOM

    def x(value: float) -> float:
        return left + wide * math.log(value / low) / math.log(high / low)

    foot, parts = height - BOTTOM, []
    ticks = log_ticks(low, high)
    for tick in ticks:
        parts.append(
            f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP}" y2="{foot}"/>'
        )
    for tick in ticks if len(ticks) < 7 else [t for t in ticks if f"{t:e}"[0] == "1"]:
        parts.append(_text(x(tick), foot + 18, f"{tick * 100:g}%"))
    parts.append(_text(left + wide / 2, height - 5, x_label))
    for index, name in enumerate(rows):
        middle = TOP + line * (index + 0.5)
        parts.append(_text(left - 8, middle + 4, name, "end"))
        for place, one in enumerate(series):
            down = middle + (place - (len(series) - 1) / 2) * 3.5  # so that none hides another
            if math.isfinite(one.values[index]) and one.values[index] > 0:
                told = f"{one.name}, {name}: {one.values[index] * 100:.3g}%"
                parts.append(
                    f'<circle class="mark" cx="{x(one.values[index]):.1f}" cy="{down:.1f}" '
                    f'r="4.5" fill="{one.color}"><title>{escape(told)}</title></circle>'
                )
    return _frame(height, title, parts)


def bars(series: list[Series], title: str, unit: str) -> str:
    """A bar for the first figure of each series, with the figure at its end."""
    top = max(_finite([one.values[0] for one in series]), default=0.0)
    if top <= 0:
        return _nothing(title)
    left, line, room = 168, 28, 92
    parts = []
    for index, one in enumerate(series):
        y, long = TOP + line * index, (WIDTH - left - room) * one.values[0] / top
        parts.append(_text(left - 8, y + 16, one.name, "end"))
        parts.append(
            f'<rect class="mark" x="{left}" y="{y + 2}" width="{long:.1f}" height="{line - 8}" '
            f'fill="{one.color}"><title>{escape(one.name)}</title></rect>'
        )
        parts.append(_text(left + long + 6, y + 16, f"{one.values[0]:.4g} {unit}", "start"))
    return _frame(TOP + line * len(series) + 6, title, parts)
