"""The tests that `make test` leaves out: other tests run every line of the package that they run, more quickly.

python tests/repeated.py DATA JUNIT      writes repeated.txt, from data of coverage with contexts and a JUnit document

The dearest test is looked at first. What runs in a process that a test starts is not known of the test, which is kept.
"""

import sys
from collections import Counter, defaultdict
from pathlib import Path

import coverage

from near import argument_of, lines_of_tests, seconds_of_tests

LEAST_SECONDS = 0.3
"""Of a test that may be left out, while coverage looks on, which triples its time."""
OF_OTHER_CODE = ("demo", "docs", "examples", "kernels", "measuring", "native", "second_device", "test_", "third_party")
"""Tests of what is not the package, or not in Python: how much of that they run is not measured."""
REPEATED = Path(__file__).with_name("repeated.txt")

Line = tuple[str, int]


def lines_of_the_package(data: Path) -> dict[str, set[Line]]:
    """Return the lines of the package that each test function runs."""
    known = coverage.CoverageData(str(data))
    known.read()
    found: defaultdict[str, set[Line]] = defaultdict(set)
    for file in known.measured_files():
        for name, lines in lines_of_tests(known, file).items():
            found[name].update((file, line) for line in lines)
    return found


def repeated(lines: dict[str, set[Line]], seconds: Counter[str]) -> list[str]:
    """Return the tests whose every line is also run by a test that is not among them."""
    count = Counter(line for name in seconds for line in lines.get(name, ()))
    found = []
    for name, spent in seconds.most_common():
        own = lines.get(name, set())
        if spent < LEAST_SECONDS or name.startswith(OF_OTHER_CODE):
            continue
        if own and all(count[line] > 1 for line in own):
            count.subtract(own)
            found.append(name)
    return found


def main() -> None:
    """Write the list."""
    data, junit = map(Path, sys.argv[1:])
    names = repeated(lines_of_the_package(data), seconds_of_tests(junit))
    arguments = [argument for name in names if (argument := argument_of(name)) is not None]
    REPEATED.write_text("".join(f"{argument}\n" for argument in sorted(arguments)), encoding="utf-8")


if __name__ == "__main__":
    main()
