"""Errors carry what they say as data, and are the same after pickle, copy and being raised by a process."""

import copy
import pickle

import pytest
from tables import each

from custom_autograd import custom_op
from custom_autograd.core.errors import (
    CheckError,
    CustomAutogradError,
    DeclarationError,
    GradientError,
    GradientUnavailable,
    KernelError,
    KernelUnavailable,
    Origin,
    RegistrationError,
)
from custom_autograd.core.messages import format_message

CLASSES = (
    CustomAutogradError,
    DeclarationError,
    RegistrationError,
    KernelError,
    KernelUnavailable,
    GradientError,
    GradientUnavailable,
    CheckError,
)
FACTS = {"expected": "one", "found": "two", "rule": "r.py:1", "declared": "d.py:2", "do": "that"}


@each("kind", CLASSES)
def test_an_error_holds_what_it_says(kind):
    error = kind("lib::op", "it is wrong", **FACTS)

    assert format_message("lib::op", "it is wrong", **FACTS) == str(error)
    assert {"op": "lib::op", "problem": "it is wrong", **FACTS} == vars(error)


@each("kind", CLASSES)
@each("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_is_the_same_after_a_copy(kind, again):
    error = kind("lib::op", "it is wrong", **FACTS)

    found = again(error)

    assert kind is type(found)
    assert (str(error), vars(error)) == (str(found), vars(found))


def test_an_error_of_one_text_is_that_text():
    error = pickle.loads(pickle.dumps(KernelUnavailable("there is no GPU")))

    assert ("there is no GPU", None, "there is no GPU", None) == (str(error), error.op, error.problem, error.do)


class _OwnInit(KernelUnavailable):
    def __init__(self, code):
        self.code = code


@pytest.mark.parametrize(
    ("error", "text"),
    [(KernelUnavailable(), ""), (KernelUnavailable(OSError("no library")), "no library"), (_OwnInit(3), "3")],
    ids=["nothing", "another error", "own __init__"],
)
def test_an_error_has_a_text_whatever_its_author_passes(error, text):
    assert (text, text) == (str(error), str(pickle.loads(pickle.dumps(error))))


def test_what_quotes_an_error_as_torch_compile_does_says_all_of_it():
    error = KernelError("lib::op", "it is wrong", **FACTS)

    assert f"KernelError({str(error)!r})" == repr(error)


def test_what_is_added_to_the_args_of_an_error_is_in_its_text():
    error = KernelError("lib::op", "it is wrong", **FACTS)
    text = str(error)

    error.args = (f"{error.args[0]}\n\nWhile executing %op",)  # as torch.fx.Interpreter does

    found = pickle.loads(pickle.dumps(error))
    assert f"{text}\n\nWhile executing %op" == str(error) == str(found)
    assert ("lib::op", "it is wrong") == (found.op, found.problem)


def test_an_origin_makes_errors_of_any_class():
    error = Origin("lib::op", "d.py:2", "r.py:1").error(GradientError, "it is wrong", do="that")

    assert GradientError is type(error)
    assert ("lib::op", "d.py:2", "r.py:1", "that") == (error.op, error.declared, error.rule, error.do)


def test_an_error_of_a_declaration_names_the_op_and_the_place():
    with pytest.raises(DeclarationError) as raised:
        custom_op("errors::unannotated")(lambda x: x)

    assert "errors::unannotated" == raised.value.op
    assert "test_errors.py" in (raised.value.declared or "")
