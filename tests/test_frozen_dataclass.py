"""The `dataclass` of frozen_dataclass.py: its classes are as Python defines them, frozen and with slots."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import FrozenInstanceError, field
from typing import Any, ClassVar

import pytest
from tables import each

from custom_autograd.frozen_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Point:
    """A point."""

    kind: ClassVar[str] = "point"
    x: Any
    y: Any = 0
    marks: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Labelled(Point):
    """A point with a label."""

    label: str = "none"


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """A value that is equal to itself only."""

    text: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """A value without fields."""


@dataclass(frozen=True, slots=True)
class Folded:
    """A text that compares without case."""

    text: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Folded) and self.text.lower() == other.text.lower()

    def __repr__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True, slots=True)
class Theirs:
    """Fields as those of `Point`, as Python defines it."""

    x: Any
    y: Any = 0
    marks: list[str] = field(default_factory=list)


def test_an_instance_has_its_fields_by_position_by_name_and_by_default():
    found = [Point(1), Point(1, 2), Point(y=2, x=1, marks=["a"])]

    assert [(1, 0, []), (1, 2, []), (1, 2, ["a"])] == [(one.x, one.y, one.marks) for one in found]


def test_each_instance_has_its_own_value_of_a_factory():
    assert Point(1).marks is not Point(1).marks


def test_fields_of_the_base_class_come_first():
    assert Labelled(1, 2, ["a"], "b") == Labelled(x=1, y=2, marks=["a"], label="b")
    assert ["x", "y", "marks", "label"] == [one.name for one in dataclasses.fields(Labelled)]


def test_the_parameters_are_those_of_pythons_dataclass():
    ours, theirs = (inspect.signature(cls).parameters for cls in (Point, Theirs))

    assert list(theirs) == list(ours)
    assert [one.kind for one in theirs.values()] == [one.kind for one in ours.values()]
    assert (theirs["x"].default, theirs["y"].default) == (ours["x"].default, ours["y"].default)


@each("given", [{}, {"x": 1, "z": 2}])
def test_missing_and_unknown_fields_raise(given):
    with pytest.raises(TypeError, match=r"Point\.__init__\(\)"):
        Point(**given)


def test_fields_cannot_be_assigned_or_deleted():
    point = Labelled(1)

    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
        setattr(point, "x", 2)  # noqa: B010 - mypy refuses the assignment
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'other'"):
        setattr(point, "other", 2)  # noqa: B010 - as above
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
        del point.x


def test_instances_have_slots_only():
    assert not hasattr(Labelled(1), "__dict__")
    assert (("x", "y", "marks"), ("label",)) == (Point.__slots__, Labelled.__slots__)


def test_values_of_one_class_with_equal_fields_are_equal():
    nan = float("nan")

    assert Point(nan) == Point(nan)  # the same object, as in tuples
    assert Point(1) != Point(2)
    assert Point(1) != Labelled(1)
    assert Point(1) != (1, 0, [])
    assert Nothing() == Nothing()


def test_equal_values_have_equal_hashes():
    assert hash(Point(1, marks=())) == hash(Point(1, 0, ()))
    assert hash(Point(1, marks=())) == hash(Theirs(1, marks=()))
    with pytest.raises(TypeError, match="unhashable"):
        hash(Point([]))


def test_a_class_without_eq_compares_identity():
    token = Token("a")

    assert {token} == {token, token}
    assert token != Token("a")


def test_methods_that_a_class_writes_stay():
    assert Folded("a") == Folded("A")
    assert "a" == repr(Folded("a"))
    assert hash(("a",)) == hash(Folded("a"))


def test_the_text_shows_all_fields():
    point = Labelled(1, marks=["a"])
    around = Point([])
    around.x.append(around)

    assert "Labelled(x=1, y=0, marks=['a'], label='none')" == repr(point)
    assert "Point(x=[...], y=0, marks=[])" == repr(around)
    assert "Nothing()" == repr(Nothing())


@each("copied", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value)), dataclasses.replace])
def test_a_copy_is_equal(copied):
    assert Labelled(1, 2, ["a"], "b") == copied(Labelled(1, 2, ["a"], "b"))


def test_replace_changes_fields():
    assert Labelled(3, label="b") == dataclasses.replace(Labelled(1, label="b"), x=3)


def test_a_match_statement_takes_fields_by_position():
    match Labelled(1, 2):
        case Labelled(x, y):
            found = (x, y)

    assert (1, 2) == found


def test_a_field_without_a_default_may_not_follow_one_with_a_default():
    with pytest.raises(TypeError, match="field 'label' without a default follows 'marks', which has one"):

        @dataclass(frozen=True, slots=True)
        class Wrong(Point):
            """A point with a label, which a call could not tell from what has a default."""

            label: str
