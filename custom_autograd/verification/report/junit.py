"""The report as JUnit XML, which CI services read: a test suite per op, a test case per check and sample."""

import re
from collections.abc import Iterable, Sequence
from xml.etree import ElementTree

from custom_autograd.verification.report.results import Result, count


def format_junit(results: Sequence[Result]) -> str:
    """Return the document, with its declaration; what XML cannot hold is written as an escape of Python."""
    root = ElementTree.Element("testsuites", {"name": "custom_autograd", **_counts(results)})
    for op in dict.fromkeys(result.op for result in results):
        own = [result for result in results if result.op == op]
        suite = ElementTree.SubElement(root, "testsuite", {"name": _text(op), **_counts(own)})
        suite.extend(_case(result) for result in own)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _counts(results: Sequence[Result]) -> dict[str, str]:
    return {
        "tests": str(len(results)),
        "failures": str(count(results, "failed")),
        "errors": str(count(results, "error")),
        "skipped": str(count(results, "skipped")),
        "time": _seconds(sum(result.seconds for result in results)),
    }


def _case(result: Result) -> ElementTree.Element:
    name = f"{result.check}: {result.sample}"
    attributes = {"classname": _text(result.op), "name": _text(name), "time": _seconds(result.seconds)}
    case = ElementTree.Element("testcase", attributes)
    properties = ElementTree.SubElement(case, "properties")
    for key, value in _properties(result):
        ElementTree.SubElement(properties, "property", {"name": _text(key), "value": _text(value)})
    if result.status in ELEMENTS:
        first = (result.accepted or result.message).partition("\n")[0]
        kind = "accepted" if result.accepted else result.code or result.check
        told = ElementTree.SubElement(case, ELEMENTS[result.status], {"type": _text(kind), "message": _text(first)})
        told.text = _text(_body(result))
    if result.script:
        ElementTree.SubElement(case, "system-out").text = _text(f"A script that shows it:\n{result.script}")
    return case


def _properties(result: Result) -> Iterable[tuple[str, str]]:
    rows = {"code": result.code, "group": result.group, "seed": str(result.seed), "cause": result.cause}
    yield from ((key, value) for key, value in rows.items() if value)
    yield from ((f"measure: {name}", f"{value:.6g}") for name, value in result.measures.items())


def _body(result: Result) -> str:
    return "\n".join([result.message, *([f"why, probably: {result.cause}"] if result.cause else [])])


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}"


def _text(text: str) -> str:
    return FORBIDDEN.sub(lambda match: ascii(match[0])[1:-1], text)


ELEMENTS = {"failed": "failure", "error": "error", "skipped": "skipped"}

FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, not even escaped: most control characters, and halves of surrogate pairs."""
