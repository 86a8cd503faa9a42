"""The relative errors that checks measured, as plots: points with coordinates, which a template draws as SVG.

A check yields numbers whose names begin with "error, ":

"error, bfloat16"                    a point of the plot against dtype
"error, size 4099"                   a point of the plot against size
"error, bfloat16, size 4 -> 4099"    both: the same call with a size made longer; "error, bfloat16" is its point at 4
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from custom_autograd.verification.report.results import Result

WIDTH, HEIGHT = 560, 320
LEFT, RIGHT, TOP, BOTTOM = 84, 16, 16, 56
"""The margins around the area of the points; the labels of the axes stand there."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis: where, and what it says."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class PlotPoint:
    """One measured error; `kind` is exact where it is 0, which a logarithmic axis cannot show, off where infinite."""

    x: float
    y: float
    title: str
    kind: str


@dataclass(frozen=True, slots=True)
class Series:
    """The points of one check."""

    name: str
    points: tuple[PlotPoint, ...]

    @property
    def line(self) -> str:
        """Return the points as the attribute `points` of a polyline."""
        return " ".join(f"{point.x:.1f},{point.y:.1f}" for point in self.points)


@dataclass(frozen=True, slots=True)
class Plot:
    """One plot of one op; lines join the points where the x axis is a size."""

    title: str
    x_label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    series: tuple[Series, ...]
    has_lines: bool


def make_plots(results: Sequence[Result]) -> tuple[Plot, ...]:
    """Return up to two plots per op, error against dtype and against size; the largest error over samples counts."""
    plots = []
    for op in dict.fromkeys(result.op for result in results):
        dtypes, sizes = _errors(result for result in results if result.op == op)
        if dtypes:
            plots.append(_plot(f"{op}: error against dtype", "dtype", dtypes, _positions_of_dtypes(dtypes)))
        if sizes:
            plots.append(_plot(f"{op}: error against size", "size, elements", sizes, _positions_of_sizes(sizes)))
    return tuple(plots)


Errors = dict[str, dict[str, float]]
"""Check -> label -> the largest error."""


def _errors(results: Iterable[Result]) -> tuple[Errors, Errors]:
    dtypes: Errors = {}
    sizes: Errors = {}
    for result in results:
        for name, value in result.measures.items():
            match = NAME.fullmatch(name)
            if match is None:
                continue
            dtype, before, size = match["dtype"], match["before"], match["size"]
            series = f"{result.check}, {dtype}" if dtype else result.check
            if dtype:
                _keep(dtypes, result.check, dtype, value)
            if size:
                _keep(sizes, series, size, value)
            if before and f"{PREFIX}{dtype}" in result.measures:
                _keep(sizes, series, before, result.measures[f"{PREFIX}{dtype}"])
    return dtypes, sizes


def _keep(errors: Errors, series: str, label: str, value: float) -> None:
    own = errors.setdefault(series, {})
    own[label] = max(own.get(label, 0.0), math.inf if math.isnan(value) else abs(value))


def _positions_of_dtypes(errors: Errors) -> dict[str, float]:
    """Return the position of each label along the x axis, as a part of its length.

    Those known to torch by their precision.
    """
    names = list(dict.fromkeys(name for own in errors.values() for name in own))
    names.sort(key=lambda name: DTYPES.index(name) if name in DTYPES else len(DTYPES))
    return {name: (position + 0.5) / len(names) for position, name in enumerate(names)}


def _positions_of_sizes(errors: Errors) -> dict[str, float]:
    names = sorted({name for own in errors.values() for name in own}, key=int)
    logs = [math.log10(max(int(name), 1)) for name in names]
    width = logs[-1] - logs[0]
    return {
        name: 0.05 + 0.9 * ((log - logs[0]) / width if width else 0.5) for name, log in zip(names, logs, strict=True)
    }


def _plot(title: str, x_label: str, errors: Errors, positions: Mapping[str, float]) -> Plot:
    known = [value for own in errors.values() for value in own.values() if 0 < value < math.inf]
    lowest = math.floor(math.log10(min(known, default=1e-16)))
    highest = max(math.ceil(math.log10(max(known, default=1.0))), lowest + 1)
    step = max(1, math.ceil((highest - lowest) / MOST_TICKS))
    powers = range(highest, lowest - 1, -step)
    x_ticks = [Tick(_x(position), name) for name, position in positions.items()]
    return Plot(
        title,
        x_label,
        tuple(_thinned(x_ticks)),
        tuple(Tick(_height(power, lowest, highest), f"1e{power}") for power in powers),
        tuple(
            Series(check, _points(check, errors[check], moved, lowest, highest))
            for check, moved in _side_by_side(errors, positions, is_moved=x_label == "dtype").items()
        ),
        has_lines=x_label != "dtype",
    )


def _side_by_side(
    errors: Errors, positions: Mapping[str, float], *, is_moved: bool
) -> Mapping[str, Mapping[str, float]]:
    """Return check -> label -> position; if labels are names, the marks of equal errors are next to each other."""
    step = min(0.03, 0.6 / len(positions) / len(errors)) if is_moved else 0.0
    shifts = {check: step * (number - (len(errors) - 1) / 2) for number, check in enumerate(errors)}
    return {check: {name: position + shift for name, position in positions.items()} for check, shift in shifts.items()}


def _points(
    check: str, errors: Mapping[str, float], positions: Mapping[str, float], lowest: int, highest: int
) -> tuple[PlotPoint, ...]:
    points = []
    for label in sorted(errors, key=positions.__getitem__):
        value = errors[label]
        kind = "exact" if value == 0 else "measured" if value < math.inf else "off"
        points.append(
            PlotPoint(
                _x(positions[label]), _y(value, lowest, highest), f"{check}, {label}: relative error {value:.2g}", kind
            )
        )
    return tuple(points)


def _x(position: float) -> float:
    return LEFT + position * (WIDTH - LEFT - RIGHT)


def _y(value: float, lowest: int, highest: int) -> float:
    """Return the height of an error; 0 at the foot of the axis, an infinity at its head."""
    if value == 0 or value == math.inf:
        return float(TOP if value else HEIGHT - BOTTOM)
    return _height(math.log10(value), lowest, highest)


def _height(logarithm: float, lowest: int, highest: int) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (highest - logarithm) / (highest - lowest)


def _thinned(ticks: Sequence[Tick]) -> Iterable[Tick]:
    """Return the ticks whose labels do not overlap."""
    end = -math.inf
    for tick in ticks:
        half = len(tick.label) * CHARACTER / 2
        if tick.at - half > end:
            end = tick.at + half + CHARACTER
            yield tick


PREFIX = "error, "
NAME = re.compile(PREFIX + r"(?:(?P<dtype>(?!size \d)[^,]+))?(?:, )?(?:size (?:(?P<before>\d+) -> )?(?P<size>\d+))?")
DTYPES = ("float64", "complex128", "float32", "complex64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
MOST_TICKS = 8
CHARACTER = 6.5
"""The width of a character of a label in the units of the plot."""
