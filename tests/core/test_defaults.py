"""Which defaults a schema can spell, and which values fit which type."""

import math

import torch
from tables import each

from custom_autograd.schema.arguments import fits, spell

SPELLED = [
    ("SymInt", 3, "3"),
    ("SymInt", -(2**63), "-9223372036854775808"),
    ("bool", True, "True"),
    ("float", 1e-6, "1e-06"),
    ("float", 2, "2"),
    ("float", 0.0, "0.0"),
    ("str", "two words", '"two words"'),
    ("SymInt?", None, "None"),
    ("SymInt[]", [1, 2], "[1, 2]"),
    ("SymInt[2]", (1, 2), "[1, 2]"),
    ("float[]", [1, 2.5], "[1, 2.5]"),
    ("bool[]", [True, False], "[True, False]"),
    ("ScalarType", torch.float16, "float16"),
    ("Device", torch.device("cuda:1"), '"cuda:1"'),
]

NOT_SPELLED = [
    ("float", math.inf), ("float", -math.inf), ("float", math.nan), ("float", 5e-324), ("float", -0.0),
    ("float[]", [math.inf]), ("complex", 1j), ("str", 'a "quote"'), ("str", "back\\slash"), ("str", "a\nb"),
    ("str", "a, b"), ("str", "é"), ("str[]", ["a"]), ("SymInt[]?", [1]), ("Layout", torch.sparse_coo),
    ("MemoryFormat", torch.preserve_format), ("Tensor[]", []),
]  # fmt: skip

MISFITS = [
    ("SymInt", "a"), ("SymInt", 1.5), ("SymInt", 2**63), ("SymInt", None), ("bool", "True"), ("float", "1.0"),
    ("str", 1), ("SymInt[]", 1), ("SymInt[]", ["a"]), ("SymInt[2]", [1]), ("Tensor", torch.ones(1)),
    ("ScalarType", "float32"), ("Generator", 3), ("str[]", [None]),
]  # fmt: skip


@each(("spelling", "value", "expected"), SPELLED)
def test_a_default_is_spelled(spelling, value, expected):
    assert expected == spell(spelling, value)


@each(("spelling", "value"), NOT_SPELLED)
def test_a_default_is_not_spelled(spelling, value):
    assert spell(spelling, value) is None


@each(("spelling", "value"), [row[:2] for row in SPELLED] + NOT_SPELLED)
def test_a_default_fits(spelling, value):
    assert fits(spelling, value)


@each(("spelling", "value"), MISFITS)
def test_a_default_does_not_fit(spelling, value):
    assert not fits(spelling, value)
