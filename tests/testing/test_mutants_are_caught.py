"""Every mutant fails the check that it names; the first line of what the check says is pinned in mutant_messages.txt.

ACCEPT_MUTANT_MESSAGES=1 pytest tests/testing/test_mutants_are_caught.py writes the messages that are found.
"""

import os
import re
from pathlib import Path

import pytest

from corpus import MUTANTS
from custom_autograd.verification.check import case_of, select_checks
from custom_autograd.verification.harness import runner
from slow_cases import slow_but_every

FALSE_LINES = [mutant for mutant in MUTANTS if mutant.check == "shapes"]
SELECTED = [*(mutant for mutant in MUTANTS if mutant.check != "shapes"), *slow_but_every(4, FALSE_LINES)]

MESSAGES = Path(__file__).with_name("mutant_messages.txt")
IS_ACCEPTING = bool(os.environ.get("ACCEPT_MUTANT_MESSAGES"))
UNSTABLE = {"hidden state", "nondeterminism", "undeclared RNG", "race", "unwritten memory", "stale cache", "leak"}
"""Families whose numbers differ from run to run: of their messages only the part before ' = ' is pinned."""
PLACE = re.compile(r"\w+\.py:\d+")
NUMBER = re.compile(r"-?\d+\.\d+(e[-+]?\d+)?|\b\d+e[-+]?\d+")
"""What depends on how a machine adds: integers, shapes and names are pinned as they are."""
COUNT = re.compile(r"\b\d+ of\b")
FIRST = re.compile(r"the first at \[[^]]*\]")
"""How many elements of memory that was not written hold a number by chance, and which, differs from run to run."""


def pinned():
    """The messages by mutant, as the file has them."""
    lines = MESSAGES.read_text(encoding="utf-8").splitlines() if MESSAGES.exists() else []
    return dict(line.split(": ", 1) for line in lines)


def accept(name, message):
    """Writes one message; rows stay in the order of the corpus, and those of mutants that are gone are dropped."""
    found = {**pinned(), name: message}
    rows = [f"{mutant.name}: {found[mutant.name]}\n" for mutant in MUTANTS if mutant.name in found]
    MESSAGES.write_text("".join(rows), encoding="utf-8")


def shown(mutant, message):
    """What is pinned of a message."""
    line = NUMBER.sub("N", PLACE.sub("FILE:LINE", message.splitlines()[0]))
    if mutant.family not in UNSTABLE:
        return line
    return FIRST.sub("the first at PLACE", COUNT.sub("N of", line.split(" = ")[0]))


def test_no_message_is_kept_of_a_mutant_that_is_gone():
    assert set() == set(pinned()) - {mutant.name for mutant in MUTANTS}


class FoundError(Exception):
    """The first failure ends the run: the samples after it would only take time."""


def first_failure(mutant):
    def look(result):
        if result.status == "failed":
            raise FoundError(result)

    case, checks = case_of(mutant.make(), mutant.samples), select_checks([mutant.check])
    try:
        report = runner.run([case], checks, is_explained=False, on_result=look)
    except FoundError as found:
        return found.args[0]
    raise AssertionError(f"{mutant.purpose} The check '{mutant.check}' does not notice:\n{report}")


@pytest.mark.parametrize("mutant", SELECTED, ids=lambda mutant: f"{mutant.name}-{mutant.check}")
def test_a_mutant_fails_the_check_that_it_names(mutant, fresh_compiler):
    failure = first_failure(mutant)
    message = shown(mutant, failure.message)
    if IS_ACCEPTING:
        accept(mutant.name, message)
    assert pinned().get(mutant.name) == message
