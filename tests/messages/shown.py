"""The text of an error as a reader sees it, with places that do not change from line to line."""

import re
from collections.abc import Callable

from custom_autograd import CustomAutogradError

IS_PLACE = re.compile("  (rule|declared) ")


def message(call: Callable[[], object], error: type[Exception] = CustomAutogradError) -> str:
    """The class and the text of the error that a call raises."""
    try:
        call()
    except error as caught:
        text = f"{type(caught).__name__}: {caught}"
        return re.sub(r"test_\w+\.py:\d+", "FILE.py:LINE", text)
    raise AssertionError("nothing was raised")


def together(*texts: str) -> str:
    """Return messages of one class as one text: what all begin with, be it an op, places of all, and then each."""
    heads = [re.match(head, texts[0]).group() for head in (r"\w+: \S+: ", r"\w+: ")]
    head = next(head for head in heads if all(text.startswith(head) for text in texts))
    messages = [text.splitlines() for text in texts]
    places = [line for line in messages[0] if IS_PLACE.match(line) and all(line in lines for lines in messages)]
    found = [head.removesuffix(": "), *places]
    for first, *others in messages:
        found += [first.removeprefix(head), *(line for line in others if line not in places)]
    return "\n".join(found)


def on_lines(*texts: str) -> str:
    """Each message on a line, without its class and the places: for those that differ from a pinned one a little."""
    kept = [[line.strip() for line in text.splitlines() if not IS_PLACE.match(line)] for text in texts]
    return "\n".join(re.sub("  +", " ", " | ".join(lines)).partition(": ")[2] for lines in kept)
