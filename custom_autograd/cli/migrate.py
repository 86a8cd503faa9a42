"""Rewrites Functions and ops of torch.library as ops of this package for `custom-autograd migrate`."""

import argparse
import difflib
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from custom_autograd.core.locations import packages_of

if TYPE_CHECKING:
    from custom_autograd.adoption.module_rewriting import Place, RewrittenModule


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments and options of this command."""
    parser.add_argument("paths", nargs="+", metavar="PATH", type=Path, help="a file, or the folder of a package")
    parser.add_argument("--write", action="store_true", help="change the files; without it the change is printed")
    parser.add_argument(
        "--namespace", metavar="NAME", help="namespace of the ops of Functions (default: name of the package)"
    )
    parser.add_argument(
        "--record",
        metavar="SCRIPT",
        type=Path,
        help="a script, or tests, to infer types from their calls, and to compare old and new code on these calls",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print or apply the change; return 0 if everything is converted and agrees, else 1.

    Raises:
        CheckError: if libcst is not installed, or the script or the new code fails.
        OSError: if a path does not exist.
    """
    files = [file for path in arguments.paths for file in _files_in(path)]
    root = _root_of(arguments.paths[0])
    names = {file: _module_of(file, root) for file in files}
    try:
        from custom_autograd.adoption import recording  # imports torch and libcst
        from custom_autograd.adoption.module_rewriting import rewrite
        from custom_autograd.adoption.source_files import read_source, write_source
    except ImportError as error:
        from custom_autograd.core.errors import CheckError  # imports torch

        do = "pip install custom-autograd[migrate]"
        raise CheckError("migrate", "libcst is not installed, which reads and writes source", do=do) from error
    recorded = recording.record(root, names.values(), arguments.record) if arguments.record is not None else None
    sources = {file: read_source(file) for file in files}
    namespace = arguments.namespace or names[files[0]].partition(".")[0]
    rewritten = rewrite(sources, namespace, recorded.functions if recorded is not None else {})
    differences: Mapping[str, str] = {}
    if recorded is not None:
        after = {one.path: one.after for one in rewritten}
        differences = recording.compare(root, after, recorded, _ops_in(rewritten, names))
    _show(rewritten, differences, is_written=arguments.write)
    if arguments.write:
        for one in rewritten:
            if one.after != one.before:
                write_source(one.path, one.after)
    is_whole = not any(place.reason for one in rewritten for place in one.places)
    return 0 if is_whole and not any(differences.values()) else 1


def _ops_in(rewritten: "list[RewrittenModule]", names: Mapping[Path, str]) -> dict[str, str]:
    """Return "module:variable" of the op that a Function became, if no other Function has its name."""
    places = [(names[one.path], place) for one in rewritten for place in one.places]
    counts = Counter(place.name for _, place in places)
    return {place.name: f"{module}:{place.op}" for module, place in places if place.op and counts[place.name] == 1}


def _files_in(path: Path) -> list[Path]:
    """Return the Python files of a path: itself, or those below it."""
    if path.is_dir():
        return sorted(file.resolve() for file in path.rglob("*.py"))
    path.stat()  # raises an OSError, which names it
    return [path.resolve()]


def _root_of(path: Path) -> Path:
    """Return the folder that the modules of a path are imported from."""
    file = path.resolve() / "__init__.py" if path.is_dir() else path.resolve()
    return [file, *packages_of(file)][-1].parent


def _module_of(file: Path, root: Path) -> str:
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _show(rewritten: "list[RewrittenModule]", differences: Mapping[str, str], *, is_written: bool) -> None:
    for one in rewritten:
        name = str(one.path)
        if not is_written:
            lines = one.before.splitlines(keepends=True), one.after.splitlines(keepends=True)
            sys.stdout.writelines(difflib.unified_diff(*lines, name, name))
    places = [(one.path, place) for one in rewritten for place in one.places]
    for path, place in places:
        print(f"{path.name}:{place.line}: {place.name}: {_verdict(place, differences)}")
    reasons = Counter(place.reason for _, place in places if place.reason)
    count = sum(reasons.values())
    listed = "; ".join(f"{reason} ({times})" if times > 1 else reason for reason, times in reasons.most_common())
    print(f"{len(places) - count} converted, {count} not" + (f": {listed}" if listed else ""))
    if differences:
        wrong = sum(map(bool, differences.values()))
        print(f"{len(differences) - wrong} of {len(differences)} recorded agree by value, forward and gradient")


def _verdict(place: "Place", differences: Mapping[str, str]) -> str:
    if place.reason:
        return f"not converted: {place.reason}"
    difference = differences.get(place.name)
    return "converted" + (f", DIFFERS: {difference}" if difference else ", agrees" if difference == "" else "")
