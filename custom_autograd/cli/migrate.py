"""custom-autograd migrate: rewrites ops of torch.library and Functions as ops of this package, and compares both."""

import argparse
import difflib
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

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
        help="a script that calls the code: its calls tell types, and old and new code are compared on them",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print or apply the change; 0 if everything is rewritten and agrees, else 1.

    Raises:
        CheckError: libcst is not installed, a path does not exist, a file is not Python, or the recorded code fails.
    """
    from custom_autograd.core.errors import CheckError  # imports torch

    files = [file for path in arguments.paths for file in _files_in(path)]
    root = _root_of(arguments.paths[0])
    modules = [_module_of(file, root) for file in files]
    try:
        from custom_autograd.adoption.module_rewriting import RecordedFunction, rewrite  # imports libcst
    except ImportError as error:
        do = "pip install custom-autograd[migrate]"
        raise CheckError("migrate", "libcst is not installed, which reads and writes source", do=do) from error
    recorded: Mapping[str, object] = {"calls": {}, "functions": {}}
    if arguments.record is not None:
        from custom_autograd.adoption.recording import record  # imports torch

        recorded = record(root, modules, arguments.record)
    known = {name: RecordedFunction(*facts) for name, facts in dict(recorded["functions"]).items()}  # type: ignore[call-overload]
    sources = {file: file.read_text(encoding="utf-8") for file in files}
    namespace = arguments.namespace or modules[0].partition(".")[0]
    rewritten = rewrite(sources, namespace, known)
    differences: dict[str, str] = {}
    if arguments.record is not None:
        from custom_autograd.adoption.recording import compare  # imports torch

        names = Counter(place.name for one in rewritten for place in one.places)
        ops = {
            place.name: f"{_module_of(one.path, root)}:{place.op}"
            for one in rewritten
            for place in one.places
            if place.op and names[place.name] == 1  # recorded calls tell the name only
        }
        after = {one.path: one.after for one in rewritten}
        differences = compare(root, after, recorded, ops)
    _show(rewritten, differences, is_written=arguments.write)
    if arguments.write:
        for one in rewritten:
            one.path.write_text(one.after, encoding="utf-8")
    places = [place for one in rewritten for place in one.places]
    return 1 if any(place.reason for place in places) or any(differences.values()) else 0


def _files_in(path: Path) -> list[Path]:
    """Return the Python files of a path: itself, or those below it."""
    if path.is_dir():
        return sorted(file.resolve() for file in path.rglob("*.py"))
    path.stat()  # raises an OSError, which names it
    return [path.resolve()]


def _root_of(path: Path) -> Path:
    """Return the folder that the modules of a path are imported from."""
    folder = path.resolve() if path.is_dir() else path.resolve().parent
    while (folder / "__init__.py").exists():
        folder = folder.parent
    return folder


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
