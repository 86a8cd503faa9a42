"""custom-autograd new: writes the files of an op that is complete, to be changed into another one."""

import argparse
import itertools
import os
from pathlib import Path

from custom_autograd.cli.starting_files import KERNELS, files_for
from custom_autograd.core.errors import CheckError
from custom_autograd.schema.names import is_name, parse_name

PURPOSE = "write a starting file for a new op, and its test"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("name", metavar="NAME", help="namespace::name, or the name alone in the namespace mylib")
    parser.add_argument("--output", metavar="FILE", type=Path, help="the op's file (default: NAME.py)")
    parser.add_argument("--kernel", choices=KERNELS, default="none", help="the kernel beside the reference")


def run(arguments: argparse.Namespace) -> int:
    """Write the op, its kernel's source and its test, and say what to do next; 0.

    Raises:
        DeclarationError: the name cannot be that of an op.
        CheckError: a file is there already, or the name of the file cannot be imported.
    """
    name = parse_name(arguments.name if "::" in arguments.name else f"{NAMESPACE}::{arguments.name}")
    if name.overload:
        raise CheckError(f"{name}: the name contains a '.', which marks an overload; start with '{name.name}'")
    file: Path = arguments.output or Path(f"{name.name}.py")
    if file.suffix != ".py" or not is_name(file.stem):
        raise CheckError(f"{file}: a test cannot import a file of that name; it is to be <name>.py")
    module, tests = module_of(file), folder_of_tests(file)
    texts = files_for(str(name), name.name, module, arguments.kernel)
    test = f"test_{file.stem}.py"
    files = {(tests if own == test else file.parent) / own: text for own, text in texts.items()}
    taken = [path for path in files if path.exists()]
    if taken:
        raise CheckError(f"{taken[0]}: the file is there already, and nothing was written")
    file.parent.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
    if "::" not in arguments.name:
        print(f"the op is {name}, because no namespace is given; namespace::{name.name} chooses one")
    print(f"now: custom-autograd check {file}, and pytest {tests / test}")
    return 0


def module_of(file: Path) -> str:
    """Return the name by which a test imports a file: within a package, with the names of the packages."""
    return ".".join([*(folder.name for folder in reversed(packages_of(file))), file.stem])


def folder_of_tests(file: Path) -> Path:
    """Return where a file's test belongs: next to the file, or outside of the package that the file is in."""
    packages = packages_of(file)
    if not packages:
        return file.parent
    root = packages[-1].parent
    root = root.parent if root.name == "src" else root
    return Path(os.path.relpath(root / "tests" if (root / "tests").is_dir() else root))


def packages_of(file: Path) -> list[Path]:
    """Return the packages that a file is in, the innermost first."""
    folders = itertools.takewhile(lambda folder: (folder / "__init__.py").exists(), file.absolute().parents)
    return list(folders)


NAMESPACE = "mylib"
