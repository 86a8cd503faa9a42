"""Tables in plain text."""

from collections.abc import Sequence


def align(rows: Sequence[Sequence[str]]) -> str:
    """Return columns as wide as their widest cell, two blanks apart, the first row underlined."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])
