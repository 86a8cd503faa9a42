"""`make near`: the tests that run the lines of a file."""

import json
from collections import Counter

import coverage

import near

JUNIT = """<testsuites><testsuite>
<testcase classname="tests.core.test_a" name="test_one[x]" time="1.0"/>
<testcase classname="tests.core.test_a" name="test_one[y]" time="0.5"/>
<testcase classname="tests.core.test_b" name="test_two" time="0.1"/>
</testsuite></testsuites>"""


def test_seconds_are_those_of_all_cases(tmp_path):
    (tmp_path / "junit.xml").write_text(JUNIT)
    assert {"core.test_a.test_one": 1.5, "core.test_b.test_two": 0.1} == near.seconds_of_tests(tmp_path / "junit.xml")


def test_every_line_is_run_by_some_tests_the_cheap_ones_first():
    lines = {f"quick{i}": {1, 2} for i in range(9)} | {"slow": {1, 2, 3}}
    seconds = Counter({**{f"quick{i}": 0.1 for i in range(9)}, "slow": 9.0})
    taken = near.chosen(lines, seconds)
    assert "slow" in taken
    assert near.FOR_EACH_LINE == sum(name.startswith("quick") for name in taken)


def test_no_more_time_is_taken_than_there_is():
    lines = {f"test{i}": {i} for i in range(9)}
    assert 4 == len(near.chosen(lines, Counter(dict.fromkeys(lines, near.MOST_SECONDS / 4))))


def test_what_is_recorded_names_tests_as_pytest_does(tmp_path, monkeypatch):
    (tmp_path / "tests" / "core").mkdir(parents=True)
    for name in ("test_a", "test_b"):
        (tmp_path / "tests" / "core" / f"{name}.py").touch()
    (tmp_path / "junit.xml").write_text(JUNIT)
    monkeypatch.chdir(tmp_path)
    data = coverage.CoverageData(str(tmp_path / "data"))
    for context in ("tests.core.test_a.test_one", "core.test_b.test_two", "core.test_gone.test_three", ""):
        data.set_context(context)
        data.add_lines({str(tmp_path / "custom_autograd" / "x.py"): [1, 2]})
    data.add_lines({"/elsewhere/x.py": [1]})  # a copy that a test made
    data.write()
    near.record(tmp_path / "data", tmp_path / "junit.xml", tmp_path / "near.json")
    found = json.loads((tmp_path / "near.json").read_text())
    assert {"custom_autograd/x.py": ["tests/core/test_b.py::test_two", "tests/core/test_a.py::test_one"]} == found
