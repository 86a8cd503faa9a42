"""The tests that `make test` leaves out because others run the same lines."""

import re
from collections import Counter
from pathlib import Path

import repeated


def test_a_dear_test_repeats_others_only_if_every_line_is_run_without_it():
    lines = {
        "a.dear": {1, 2},
        "a.also_dear": {1, 2, 3},
        "a.quick": {1},
        "b.quick": {2},
        "examples.dear": {1},
        "a.own": {4},
    }
    seconds = Counter({"a.dear": 9, "a.also_dear": 8, "a.quick": 0.1, "b.quick": 0.1, "examples.dear": 7, "a.own": 6})

    assert ["a.dear"] == repeated.repeated(lines, seconds)
    assert ["a.dear", "a.also_dear"] == repeated.repeated({**lines, "a.quick": {1, 3}}, seconds)


def test_each_one_that_is_named_is_there():
    for name in repeated.REPEATED.read_text(encoding="utf-8").splitlines():
        file, *_, function = name.split("::")
        assert re.search(rf"^ *def {function}\(", Path(file).read_text(encoding="utf-8"), re.MULTILINE), name
