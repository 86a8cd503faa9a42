"""The plots of measured errors: which there are, and where the points stand."""

import math

from hypothesis import given
from hypothesis import strategies as st
from tables import each

from custom_autograd.verification.report import Result
from custom_autograd.verification.report.plots import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, make_plots


def measured(check="low_precision", **measures):
    return Result("ns::f", check, "small", "passed", measures=measures)


def points(plot):
    return [point for series in plot.series for point in series.points]


def test_errors_by_dtype_and_by_size_are_two_plots():
    plots = make_plots([measured(**{"error, float32": 1e-7, "error, size 7": 1e-6, "bytes saved": 12})])

    assert ["ns::f: error against dtype", "ns::f: error against size"] == [plot.title for plot in plots]
    assert ["dtype", "size, elements"] == [plot.x_label for plot in plots]


def test_a_size_made_longer_is_a_line_from_the_size_before():
    measures = {"error, float16": 1e-3, "error, float16, size 4 -> 4099": 2e-3, "error, float16, size 7 -> 4099": 3e-3}
    dtypes, sizes = make_plots([measured(**measures)])

    assert ["low_precision, float16: relative error 0.003"] == [point.title for point in points(dtypes)]
    assert ["4", "7", "4099"] == [tick.label for tick in sizes.x_ticks]
    assert [
        "low_precision, float16, 4: relative error 0.001",
        "low_precision, float16, 7: relative error 0.001",
        "low_precision, float16, 4099: relative error 0.003",
    ] == [point.title for point in points(sizes)]


def test_without_errors_there_is_no_plot():
    assert () == make_plots([measured(**{"bytes saved": 12})])


def test_the_largest_error_over_the_samples_is_drawn():
    (plot,) = make_plots([measured(**{"error, float32": 1e-7}), measured(**{"error, float32": 3e-7})])

    assert ["low_precision, float32: relative error 3e-07"] == [point.title for point in points(plot)]


def test_dtypes_stand_by_precision_and_sizes_by_number():
    dtypes, sizes = make_plots(
        [measured(**{f"error, {label}": 0.1 for label in ("bfloat16", "float64", "size 4099", "size 7", "mixed")})]
    )

    assert ["float64", "bfloat16", "mixed"] == [tick.label for tick in dtypes.x_ticks]
    assert ["7", "4099"] == [tick.label for tick in sizes.x_ticks]


@each(("error", "kind", "height"), [(0.0, "exact", HEIGHT - BOTTOM), (math.inf, "off", TOP), (math.nan, "off", TOP)])
def test_what_a_logarithm_cannot_show_stands_at_an_end_of_the_axis(error, kind, height):
    (plot,) = make_plots([measured(**{"error, float32": error})])

    assert [(kind, height)] == [(point.kind, point.y) for point in points(plot)]


@given(st.dictionaries(st.integers(0, 10**9), st.floats(0) | st.just(math.nan), min_size=1, max_size=9))
def test_every_point_stands_within_the_axes(errors):
    (plot,) = make_plots([measured(**{f"error, size {size}": error for size, error in errors.items()})])

    assert len(errors) == len(points(plot))
    assert all(LEFT <= point.x <= WIDTH - RIGHT and TOP <= point.y <= HEIGHT - BOTTOM for point in points(plot))
    assert all(TOP - 1e-9 <= tick.at <= HEIGHT - BOTTOM + 1e-9 for tick in plot.y_ticks)
