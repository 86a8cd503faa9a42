"""The tests that touch a file, out of what coverage saw of each test: `make near FILE=custom_autograd/...`.

python tests/near.py FILE                        runs them, by build/near.json
python tests/near.py --record DATA JUNIT OUT     writes that, from data of coverage with contexts and a JUnit document

Of the tests that run a line of the file, a few for each line are taken, those first that run most new lines a second.
"""

import argparse
import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from pathlib import Path

import coverage

FOR_EACH_LINE = 3
MOST_SECONDS = 40.0
"""CPU time of the tests of one file: about 20 seconds with two workers, besides their start."""
RECORDED = Path("build/near.json")


def seconds_of_tests(junit: Path) -> Counter[str]:
    """Return the seconds of each test function by its dotted name; cases with parameters are added."""
    found: Counter[str] = Counter()
    for case in ElementTree.parse(junit).iter("testcase"):
        name = case.get("name", "").partition("[")[0]
        found[f"{case.get('classname', '')}.{name}".removeprefix("tests.")] += float(case.get("time", "0"))
    return found


def lines_of_tests(known: coverage.CoverageData, file: str) -> dict[str, set[int]]:
    """Return which lines of a file each test function runs, by its dotted name."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    for line, contexts in known.contexts_by_lineno(file).items():
        for context in contexts:
            found[context.removeprefix("tests.")].add(line)
    return found


def chosen(lines: dict[str, set[int]], seconds: Counter[str]) -> list[str]:
    """Return the tests that are run for a file, in the order in which they are taken.

    Args:
        lines: which lines of the file each test runs.
        seconds: how long each test takes.
    """
    wanted = Counter({line: FOR_EACH_LINE for of_test in lines.values() for line in of_test})
    left, spent, taken = dict(lines), 0.0, []
    while left:
        gains = {name: sum(wanted[line] > 0 for line in of_test) for name, of_test in left.items()}
        best = max(gains, key=lambda name: (gains[name] / (seconds[name] + 0.02), name))
        if not gains[best]:
            break
        for line in left.pop(best):
            wanted[line] -= 1
        if spent + seconds[best] <= MOST_SECONDS:
            spent += seconds[best]
            taken.append(best)
    return taken


def record(data: Path, junit: Path, out: Path) -> None:
    """Write the tests of each file, as arguments of pytest."""
    known = coverage.CoverageData(str(data))
    known.read()
    seconds, root = seconds_of_tests(junit), Path.cwd()
    table = {}
    for file in sorted(file for file in known.measured_files() if Path(file).is_relative_to(root)):
        lines = lines_of_tests(known, file)
        tests = [
            argument
            for name in chosen({k: v for k, v in lines.items() if k in seconds}, seconds)
            if (argument := argument_of(name)) is not None
        ]
        table[str(Path(file).relative_to(root))] = tests
    out.write_text(json.dumps(table, indent=0, sort_keys=True), encoding="utf-8")


def argument_of(name: str) -> str | None:
    """Return what pytest calls a test of a dotted name; None if its file is not there any more."""
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        path = Path("tests", *parts[:count]).with_suffix(".py")
        if path.exists():
            return "::".join([path.as_posix(), *parts[count:]])
    return None


def main() -> int:
    """Return the exit status of pytest, or 2 where nothing is known of the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--workers", default="2")
    given = parser.parse_args()
    if given.record:
        record(*given.paths)
        return 0
    if not RECORDED.exists():
        print(
            f"{RECORDED} is not there: `make contexts` records it, and the nightly workflow keeps it", file=sys.stderr
        )
        return 2
    table = json.loads(RECORDED.read_text(encoding="utf-8"))
    tests = list(dict.fromkeys(test for path in given.paths for test in table.get(path.as_posix(), [])))
    if not tests:
        print(f"no test is known to run {', '.join(map(str, given.paths))}", file=sys.stderr)
        return 2
    return subprocess.call([sys.executable, "-m", "pytest", "-q", "-n", given.workers, "-m", "not slow", *tests])


if __name__ == "__main__":
    raise SystemExit(main())
