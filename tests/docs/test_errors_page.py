"""The index of errors is complete: every message that a test pins is found in it, by class and by text."""

import inspect
import textwrap
from pathlib import Path

import pytest
from generate import errors
from generate.raised import messages

ROOT = Path(__file__).parents[2]
PINNED = [text for text in errors.pinned(ROOT / "tests" / "messages") if text]


@pytest.fixture(scope="module")
def found():
    return messages(ROOT / "custom_autograd")


@pytest.fixture(scope="module")
def page():
    return errors.page(ROOT)


def read(tmp_path, **files):
    """The messages of a package of these files."""
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
    return [(message.error, message.text, dict(message.facts)) for message in messages(tmp_path)]


def test_there_are_messages_to_find():
    assert len(PINNED) > 150


def test_every_pinned_message_is_in_the_index(found):
    assert [] == [text.splitlines()[0] for text in PINNED if errors.find(found, text) is None]


def test_the_reason_of_a_skip_is_in_the_index(found):
    assert errors.find(found, "NothingToCheckError: the sample has no tensor to batch") is not None


def test_a_message_that_is_not_in_the_package_is_not_found(found):
    assert errors.find(found, "KernelError: ns::op: the moon is full") is None


@pytest.mark.parametrize(
    "part",
    [
        "`the gradient of {label} has the wrong shape`",
        "What to do: compute it where the input is.",
        "GradientError: words::linear: the gradient of 'weight' has the wrong shape\n  expected ",
    ],
)
def test_the_page_shows_text_advice_and_the_pinned_message(page, part):
    assert part in page


def test_the_table_of_classes_says_what_each_derives_from():
    tree = """Errors. Two of them.

    All (RuntimeError)
      Bad (also ValueError)   change the | declaration
        Cut                   the next one runs
      Dim                     change the kernel
    """

    assert [
        ("`All`", "`RuntimeError`", errors.ALL),
        ("`Bad`", "`All`, `ValueError`", r"change the \| declaration"),
        ("`Cut`", "`Bad`", "the next one runs"),
        ("`Dim`", "`All`", "change the kernel"),
    ] == list(errors.classes(inspect.cleandoc(tree)))


def test_every_class_of_the_package_is_in_the_table(page):
    assert [] == [name for name in errors.ERRORS if f"| `{name}` |" not in page]


def test_messages_of_the_same_first_words_have_places_of_their_own(tmp_path):
    text = """
        def f():
            raise KernelError("one two three four five six seven eight nine")

        def g():
            raise KernelError("one two three four five six seven eight ten")
    """
    (tmp_path / "a.py").write_text(textwrap.dedent(text), encoding="utf-8")

    name = "message-kernelerror-one-two-three-four-five-six-seven-eight"
    assert [name, f"{name}-2"] == list(errors.anchors(messages(tmp_path)).values())


def test_a_message_that_is_raised_where_it_is_written(tmp_path):
    text = """
        def f(name, op):
            raise KernelError(op, f"no {name!r} here", expected="one", do="look elsewhere")
    """

    assert [("KernelError", "no {name} here", {"expected": "one", "do": "look elsewhere"})] == read(tmp_path, a=text)


def test_both_alternatives_of_a_message(tmp_path):
    text = """
        def f(op, is_late):
            problem = "it is late" if is_late else "it is early"
            raise GradientError(op, problem)
    """

    assert ["it is late", "it is early"] == [message[1] for message in read(tmp_path, a=text)]


def test_a_message_that_a_function_of_the_file_makes(tmp_path):
    text = """
        def f(op, name):
            raise _error(op, f"'{name}' is gone", do="bring it back")

        def _error(op, problem, **facts):
            return CheckError(op, f"the rule says: {problem}", **facts)
    """

    assert [("CheckError", "the rule says: '{name}' is gone", {"do": "bring it back"})] == read(tmp_path, a=text)


def test_a_function_of_the_same_name_in_another_file_makes_no_message(tmp_path):
    one = """
        def _error(op, problem):
            return CheckError(op, problem)

        def f(op):
            raise _error(op, "one")
    """
    other = """
        def g(op):
            raise _error(op, "another")
    """

    assert ["one"] == [message[1] for message in read(tmp_path, a=one, b=other)]


def test_a_message_that_is_imported_from_another_file(tmp_path):
    one = """
        def refusal(op, problem):
            return CheckError(op, problem)
    """
    other = """
        from a import refusal

        def g(op):
            raise refusal(op, "another")
    """

    assert [("CheckError", "another", {})] == read(tmp_path, a=one, b=other)
