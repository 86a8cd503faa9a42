"""The check `cache` fails an op whose rule reads what the key of compile caches does not know of."""

from decimal import Context
from types import SimpleNamespace

import torch
from tables import each
from torch import Tensor
from verdicts import verdict

from custom_autograd import custom_op
from custom_autograd.capabilities import compile_cache
from custom_autograd.schema.samples import Sample

SETTINGS = SimpleNamespace(factor=2.0)
DIGITS = Context(prec=2)  # written in C: its attributes are in no dict, and in no slot
NUMBERS = (number for number in (2.0, 3.0))
FACTORS = [2.0, 3.0]
FACTOR = 2.0


def declare(name, backward):
    def kernel(x: Tensor) -> Tensor:
        return x * 2

    op = custom_op(f"faults_cache::{name}")(kernel)
    op.register_fake(torch.empty_like)
    op.register_backward(backward)
    return op


def captured(factor):
    return lambda grad: grad * factor


HONEST = {
    "constant": declare("constant", lambda grad: grad * 2),
    "global": declare("number", lambda grad: grad * FACTOR),
    "table": declare("table", lambda grad: grad * FACTORS[0]),
    "closure": declare("closure", captured(2.0)),
    "attribute": declare("attribute", lambda grad: grad * SETTINGS.factor),
    "attribute in C": declare("setting", lambda grad: grad * DIGITS.prec),
}
GENERATOR = declare("generator", lambda grad: grad * next(NUMBERS))


result_of = verdict("cache", [Sample(torch.ones(3))])


@each("name", HONEST)
def test_what_a_rule_reads_is_in_the_key(name):
    result = result_of(HONEST[name])

    assert ("passed", "") == (result.status, result.message)


def test_a_value_that_cannot_be_read_fails():
    result = result_of(GENERATOR)

    assert "failed" == result.status
    assert "a rule reads what cannot be a part of the key of compile caches: a generator" in result.message
    assert "they never hit in another process" == result.cause


def test_a_value_that_is_not_in_the_key_fails(monkeypatch):
    monkeypatch.setattr(compile_cache, "state_of", lambda value: ())

    result = result_of(HONEST["attribute"])

    assert "failed" == result.status
    assert "depends on 'SETTINGS.factor', 2.0, whose change is not in the key of compile caches" in result.message
    assert "the rule 'backward' (test_cache.py:" in result.message


def test_plain_function_is_skipped_with_the_reason():
    assert "torch.compile traces through it" in result_of(torch.sin).message


def test_op_of_torch_library_is_skipped_with_the_reason():
    assert "of ops declared with custom_op only" in result_of(torch.ops.aten.sin.default).message
