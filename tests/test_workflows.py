"""The workflows agree with the project: they test the supported versions, and call targets that the Makefile has."""

import re
import sys
from itertools import chain
from pathlib import Path

import yaml
from tables import each

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest requires it there

ROOT = Path(__file__).parents[1]
PATHS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
WORKFLOWS = {path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in PATHS}
MATRIX = WORKFLOWS["ci.yml"]["jobs"]["tests"]["strategy"]["matrix"]["include"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MAKE = re.compile(r"\bmake (?:--?\w+ )*(\"?[$\w-]+\"?)(?: TORCH=([\d.]+))?")


def minor(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version."""
    major, second, *_ = version.split(".")
    return int(major), int(second)


def all_between(versions: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return every minor version from the oldest to the newest one."""
    (major, first), (_, last) = min(versions), max(versions)
    return {(major, second) for second in range(first, last + 1)}


def pinned_torch(name: str) -> str:
    """Return the version of torch that a requirements file pins."""
    return re.search(r"^torch==(\S+)$", (ROOT / name).read_text(encoding="utf-8"), re.M)[1]


def steps_of(workflow: dict) -> list[dict]:
    """Return the steps of all jobs."""
    return [step for job in workflow["jobs"].values() for step in job.get("steps", [])]


def made_targets(name: str) -> list[tuple[str, str]]:
    """Return the target and the torch of each call of make in a workflow."""
    return [call for step in steps_of(WORKFLOWS[name]) for call in MAKE.findall(step.get("run", ""))]


def test_the_oldest_python_is_the_oldest_that_the_package_allows():
    tested = {minor(row["python"]) for row in MATRIX}

    assert minor(PROJECT["requires-python"].removeprefix(">=")) == min(tested)
    assert all_between(tested) == tested


def test_the_classifiers_are_the_pythons_that_are_tested():
    classifiers = {match[1] for line in PROJECT["classifiers"] if (match := re.search(r"Python :: (3\.\d+)$", line))}

    assert classifiers == {row["python"] for row in MATRIX}


def test_the_oldest_torch_is_the_oldest_that_the_package_allows():
    tested = {minor(row["torch"]) for row in MATRIX}
    (torch,) = PROJECT["dependencies"]

    assert minor(torch.removeprefix("torch>=")) == min(tested)
    assert all_between(tested) == tested


def test_the_newest_torch_is_that_of_the_requirements():
    assert pinned_torch("requirements-newest.txt") == max((row["torch"] for row in MATRIX), key=minor)


def test_every_other_job_has_the_torch_of_the_constraints():
    torches = {torch for _, torch in made_targets("ci.yml") if torch}

    assert {pinned_torch("constraints.txt")} == torches
    assert pinned_torch("constraints.txt") in {row["torch"] for row in MATRIX}


def test_no_pair_is_tested_twice_with_one_target():
    rows = [(row["python"], row["torch"], row["target"]) for row in MATRIX]

    assert sorted(set(rows)) == sorted(rows)


def test_every_target_that_a_workflow_makes_exists():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    called = {target for target, _ in chain.from_iterable(map(made_targets, WORKFLOWS))}

    assert {'"$TARGET"', "check", "contexts", "core", "dist", "docs", "test-all"} == called
    assert called - {'"$TARGET"'} | {row["target"] for row in MATRIX} <= targets


@each("name", WORKFLOWS)
def test_a_workflow_may_only_read(name):
    assert {"contents": "read"} == WORKFLOWS[name]["permissions"]


@each("name", WORKFLOWS)
def test_every_job_ends_in_time(name):
    jobs = WORKFLOWS[name]["jobs"].items()

    assert [] == [job for job, spec in jobs if "uses" not in spec and "timeout-minutes" not in spec]


@each("name", WORKFLOWS)
def test_every_action_has_a_major_version(name):
    uses = [step["uses"] for step in steps_of(WORKFLOWS[name]) if "uses" in step]

    assert [] == [action for action in uses if not re.fullmatch(r"[\w.-]+/[\w.-]+@(release/)?v\d+", action)]


def test_a_job_writes_only_what_is_listed():
    """Jobs write to publish docs, to sign what was built, and to prove to the package index who publishes."""
    written = {
        f"{name}: {job}": sorted(scope for scope, level in spec.get("permissions", {}).items() if level == "write")
        for name, workflow in WORKFLOWS.items()
        for job, spec in workflow["jobs"].items()
    }

    assert {
        "docs.yml: publish": ["contents"],
        "release.yml: build": ["attestations", "id-token"],
        "release.yml: docs": ["contents"],
        "release.yml: publish": ["id-token"],
    } == {job: scopes for job, scopes in written.items() if scopes}


def test_a_release_publishes_its_docs_after_the_package():
    """A workflow that is called may do no more than the job that calls it."""
    docs = WORKFLOWS["release.yml"]["jobs"]["docs"]

    assert ("publish", "./.github/workflows/docs.yml") == (docs["needs"], docs["uses"])
    assert WORKFLOWS["docs.yml"]["jobs"]["publish"]["permissions"] == docs["permissions"]
    assert "workflow_call" in WORKFLOWS["docs.yml"][True]  # YAML reads `on` as a bool


def test_what_is_not_released_is_in_fragments_only():
    """At a release, towncrier would leave a text under "Unreleased" below the section that it adds."""
    _, _, rest = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("## [Unreleased]\n")

    assert "" == rest.partition("## [")[0].strip()
