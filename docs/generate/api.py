"""Generate the reference of the public names from their docstrings, and of the command line from its help."""

from __future__ import annotations

import argparse
import importlib
import inspect
import types
from types import ModuleType

from custom_autograd.cli.main import COMMANDS, EPILOG, build_parser
from generate.markup import block

MODULES = {
    "custom_autograd": "api",
    "custom_autograd.graph": "api-graph",
    "custom_autograd.kernels": "api-kernels",
    "custom_autograd.packaging": "api-packaging",
    "custom_autograd.testing": "api-testing",
}
"""The page of each module whose public names are documented."""

OBJECTS = (
    ("custom_autograd.op.CustomOp", "CustomOp"),
    ("custom_autograd.variants.InplaceVariant", "op.inplace"),
    ("custom_autograd.variants.OutVariant", "op.out"),
)
"""The classes whose members have a separate page, and the names of their instances in it."""


def pages() -> dict[str, str]:
    """Return the Markdown of each page by its path below docs/."""
    found = {f"reference/{page}.md": _module(name) for name, page in MODULES.items()}
    return {**found, "reference/api-custom-op.md": _objects(), "reference/command-line.md": _commands()}


def directive(module: ModuleType, name: str) -> str:
    """Return the autodoc directive of a public name."""
    value = getattr(module, name)
    place = f"{module.__name__}.{name}"
    if isinstance(value, type) and issubclass(value, BaseException):
        return f".. autoexception:: {place}"
    if isinstance(value, type):
        members = "" if name == "CustomOp" else "\n   :members:"
        return f".. autoclass:: {place}{members}"
    if inspect.isroutine(value):
        return f".. autofunction:: {place}"
    return f".. autodata:: {place}\n   :no-value:"


def _module(name: str) -> str:
    module = importlib.import_module(name)
    parts = [f"# {name}", (module.__doc__ or "").strip()]
    for public in sorted(module.__all__, key=lambda public: _kind(getattr(module, public))):
        parts += [f"## {public}", f"```{{eval-rst}}\n{directive(module, public)}\n```"]
        if public == "CustomOp":
            parts.append("See [the members of an op](api-custom-op.md).")
    return "\n\n".join(parts) + "\n"


def _kind(value: object) -> int:
    """Return the sort key: functions, then classes and values, then exceptions; names are already in order."""
    if isinstance(value, type):
        return 2 if issubclass(value, BaseException) else 1
    return 0 if inspect.isroutine(value) else 1


def _objects() -> str:
    parts = ["# The members of an op", "The members of the object that `custom_op` returns, and of its two variants."]
    for place, title in OBJECTS:
        module, _, name = place.rpartition(".")
        kind = getattr(importlib.import_module(module), name)
        parts.append(f"## {title}")
        for member in members(kind):
            is_value = isinstance(inspect.getattr_static(kind, member), property)
            what = "autoproperty" if is_value else "automethod"
            parts.append(f"```{{eval-rst}}\n.. {what}:: {place}.{member}\n```")
    return "\n\n".join(parts) + "\n"


def members(kind: type) -> list[str]:
    """Return the public members in the order of the source, including `__call__`."""
    found = [name for row in kind.__mro__ for name, value in vars(row).items() if _is_member(name, value)]
    return list(dict.fromkeys(found))


def _is_member(name: str, value: object) -> bool:
    is_public = not name.startswith("_") or name == "__call__"
    return is_public and isinstance(value, property | types.FunctionType) and bool(value.__doc__)


def _commands() -> str:
    parts = ["# The command line", "The help of `custom-autograd` and of each of its commands."]
    parts.append(block(_help(build_parser())))
    for command in COMMANDS:
        parser = argparse.ArgumentParser(
            prog=f"custom-autograd {command.name}",
            description=command.purpose,
            epilog=EPILOG if command.takes_targets else None,
        )
        if command.takes_targets:
            parser.add_argument("targets", nargs="+", metavar="TARGET", help="what to look at")
        command.configure(parser)
        parts += [f"## {command.name}", block(_help(parser))]
    return "\n\n".join(parts) + "\n"


def _help(parser: argparse.ArgumentParser) -> str:
    """Return the help of a parser, formatted to the width of a page."""
    parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=WIDTH)
    return parser.format_help()


WIDTH = 88
