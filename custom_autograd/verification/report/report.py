"""The results of a verification, and the ways to read them; one report of several.

Reports are merged if they are the shards of one run, all of them, or whole reports of different ops.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from custom_autograd.core.errors import CheckError
from custom_autograd.core.messages import show
from custom_autograd.verification.report import documents, html, text
from custom_autograd.verification.report.results import Result, Run, Shard


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a verification found.

    Args:
        results: one per op, check and sample, in the order in which they were found.
        sources: the generated source of each op that has one, by the op's name.
        run: the run of `custom-autograd check` that it comes from; None for a report made in Python.
    """

    results: tuple[Result, ...]
    sources: Mapping[str, str] = field(default_factory=dict)
    run: Run | None = None

    @property
    def ok(self) -> bool:
        """Return True if nothing failed and nothing raised. What was skipped is in `results`, with its reason."""
        return not any(result.is_finding for result in self.results)

    def raise_for_failures(self) -> None:
        """Raise if something failed or raised.

        Raises:
            CheckError: with the findings, and the counts of everything.
        """
        if not self.ok:
            raise CheckError(text.format_failures(self.results))

    def to_json(self) -> str:
        """Return the results as JSON: an object with `format`, `ok`, `counts`, `results`, `sources` and `run`."""
        return documents.format_json(self.results, self.sources, self.run)

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """Return the report that `to_json` wrote.

        Raises:
            ValueError: it is no such document, or of a format that is not known here.
        """
        results, sources, run = documents.parse_json(text)
        return cls(tuple(results), sources, run)

    def to_markdown(self) -> str:
        """Return a table of ops and checks, then each finding, what is accepted, and each reason for a skip."""
        return documents.format_markdown(self.results)

    def to_junit(self) -> str:
        """Return JUnit XML, which CI services read: a test suite per op, a test case per check and sample."""
        return documents.format_junit(self.results)

    def to_html(self) -> str:
        """Return one page that needs nothing else: matrix, findings, plots and generated source, in light and dark."""
        return html.format_page(self.results, self.sources)

    def _repr_html_(self) -> str:
        """Return the matrix and the findings, as a notebook shows them."""
        return html.format_fragment(self.results)

    def __str__(self) -> str:
        """Return what a terminal shows."""
        return text.format_report(self.results)


@dataclass(frozen=True, slots=True)
class Part:
    """A report, and the name of the file that it was read from."""

    file: str
    report: Report

    @property
    def shard(self) -> Shard | None:
        """Return the shard that the report is about, or None if it is about all ops of its run."""
        return None if self.report.run is None else self.report.run.shard

    def ops(self) -> tuple[str, ...]:
        """Return the names of the ops that have results."""
        return tuple(dict.fromkeys(result.op for result in self.report.results))


def merge(parts: Sequence[Part]) -> Report:
    """Return one report of everything that the parts contain.

    Args:
        parts: either every shard of one run, in any order, or reports of different ops; at least one.

    Returns:
        The report of the run as it would be without shards; for other reports their results in the given order.

    Raises:
        CheckError: a shard is missing, is given twice or belongs to another run, a run was stopped, or an op is
            missing or in two reports.
    """
    for part in parts:
        _require_complete(part)
    if not any(part.shard for part in parts):
        return _merge_whole(parts)
    runs = _require_shards(parts)
    _require_same_run(parts, runs)
    _require_every_shard(parts, runs)
    return _merge_shards(parts, runs[0])


def _merge_whole(parts: Sequence[Part]) -> Report:
    """Return the report of several that have no shards."""
    files: dict[str, str] = {}
    for part in parts:
        for op in part.ops():
            if op in files:
                problem = f"it has results of '{op}', and so has {files[op]}"
                raise CheckError(part.file, problem, do="give reports of different ops, or the shards of one run")
        files |= dict.fromkeys(part.ops(), part.file)
    results, sources = _together(parts)
    return Report(tuple(results), sources, parts[0].report.run if len(parts) == 1 else None)


def _merge_shards(parts: Sequence[Part], run: Run) -> Report:
    """Return the report of all shards, with the ops in the order of the run."""
    positions = {op: position for position, op in enumerate(run.ops)}
    results, sources = _together(parts)
    results.sort(key=lambda result: positions[result.op])
    ordered = {op: sources[op] for op in run.ops if op in sources}
    return Report(tuple(results), ordered, replace(run, shard=None))


def _together(parts: Sequence[Part]) -> tuple[list[Result], Mapping[str, str]]:
    results = [result for part in parts for result in part.report.results]
    return results, {op: source for part in parts for op, source in part.report.sources.items()}


def _require_complete(part: Part) -> None:
    """Check that a report has results of exactly the ops that its run checked."""
    run = part.report.run
    if run is None:
        return
    if not run.is_complete:
        raise CheckError(part.file, "Ctrl-C stopped this run before its end", do=_again(run, run.shard))
    for op in run.own_ops():
        if op not in part.ops():
            raise CheckError(part.file, f"it has no results of '{op}'", do=_again(run, run.shard))
    for op in part.ops():
        if op not in run.own_ops():
            shard = "the run" if run.shard is None else f"shard {run.shard}"
            raise CheckError(part.file, f"it has results of '{op}', which is not in {shard}", do=_again(run, run.shard))


def _require_shards(parts: Sequence[Part]) -> list[Run]:
    """Return the runs of the parts, each of which has to be a shard."""
    first = next(part for part in parts if part.shard)
    for part in parts:
        if part.shard is None:
            problem = f"it is not a shard, and {first.file} is shard {first.shard}"
            raise CheckError(part.file, problem, do="give the shards of one run, and no other report")
    return [part.report.run for part in parts if part.report.run is not None]


def _require_same_run(parts: Sequence[Part], runs: Sequence[Run]) -> None:
    """Check that all shards have the conditions of the first."""
    expected = _conditions(runs[0])
    for part, run in zip(parts, runs, strict=True):
        for name, found in _conditions(run).items():
            if found != expected[name]:
                problem = f"it is a shard of another run than {parts[0].file}: the {name} differ"
                here, there = _differences(found, expected[name])
                raise CheckError(part.file, problem, expected=there, found=here, do="give the shards of one run")


def _conditions(run: Run) -> Mapping[str, object]:
    """Return what the shards of one run have in common, by the words for it."""
    return {
        "numbers of shards": run.shard.count if run.shard else 1,
        "targets": run.targets,
        "ops": frozenset(run.ops),
        "checks": frozenset(run.checks),
        "devices": run.device,
        "dtypes": run.dtype,
        "seeds": run.seed,
        "versions of torch": run.torch,
        "versions of custom_autograd": run.custom_autograd,
    }


def _differences(found: object, expected: object) -> tuple[str, str]:
    """Return both values as a message shows them."""
    if isinstance(found, frozenset) and isinstance(expected, frozenset):
        return _with_names(found, found - expected), _with_names(expected, expected - found)
    return show(found), show(expected)


def _with_names(names: frozenset[object], shown: frozenset[object]) -> str:
    """Return how many names there are, and those that only this side has."""
    return ", ".join([str(len(names)), *([f"with {_listed(sorted(map(str, shown)))}"] if shown else [])])


def _require_every_shard(parts: Sequence[Part], runs: Sequence[Run]) -> None:
    """Check that each shard is given once."""
    files: dict[Shard, str] = {}
    for part in parts:
        if part.shard is None:
            continue
        if part.shard in files:
            problem = f"it is shard {part.shard}, and so is {files[part.shard]}"
            raise CheckError(part.file, problem, do="leave one of them out")
        files[part.shard] = part.file
    (count,) = {shard.count for shard in files}
    if len(files) < count:
        every = (Shard(number, count) for number in range(1, count + 1))
        missing = list(islice((shard for shard in every if shard not in files), MOST_SHOWN + 1))
        problem = f"it is one of {count} shards, of which these are missing: {_listed(list(map(str, missing)))}"
        raise CheckError(parts[0].file, problem, do=_again(runs[0], missing[0]))


def _again(run: Run, shard: Shard | None) -> str:
    """Return the advice to check a shard, or everything, again."""
    targets = [shlex.join(run.targets[:MOST_TARGETS]), *(["..."] if len(run.targets) > MOST_TARGETS else [])]
    words = ["custom-autograd check", *targets, *([f"--shard {shard}"] if shard else []), "--json FILE"]
    return f"run {' '.join(words)}, with the other options of the run"


def _listed(names: Sequence[str]) -> str:
    return ", ".join([*names[:MOST_SHOWN], *(["..."] if len(names) > MOST_SHOWN else [])])


MOST_SHOWN = 10
"""Shards, ops or checks that a message names."""

MOST_TARGETS = 3
"""TARGETs that a command in a message names."""
