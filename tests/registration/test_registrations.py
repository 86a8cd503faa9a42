"""Registrations: which rule replaces which."""

from tables import each

from custom_autograd.capabilities.autocast import AutocastRule
from custom_autograd.capabilities.subclasses import TorchDispatch
from custom_autograd.registration.policy_types import CastPolicy
from custom_autograd.registration.rule_types import BackwardRule, DropInRule, FakeRule, Gradient, Registrations


def function():
    pass


class Wrapper:
    pass


def gradient_of(*names):
    return Gradient("file.py:1", function, (), names, False, True, frozenset(), None, names)


BACKWARD = BackwardRule("file.py:1", function, (), (), False, True, frozenset(), None, {}, False)
DROP_IN = DropInRule("file.py:1", function, None, False, False)
X, W, BOTH = gradient_of("x"), gradient_of("w"), gradient_of("x", "w")
FAKE = FakeRule("file.py:1", function)
ON_CPU, ON_CUDA = (AutocastRule("file.py:1", CastPolicy(device, "", {}, {})) for device in ("cpu", "cuda"))


def registrations(*rules):
    found = Registrations()
    for rule in rules:
        found = found.with_(rule)
    return found


REPLACED = {
    "a backward by a drop-in": ([BACKWARD], DROP_IN, [BACKWARD]),
    "a drop-in by a backward": ([DROP_IN], BACKWARD, [DROP_IN]),
    "a backward by a gradient": ([BACKWARD], X, [BACKWARD]),
    "a drop-in by a gradient": ([DROP_IN], X, [DROP_IN]),
    "all gradients by a backward": ([X, W], BACKWARD, [X, W]),
    "all gradients by one of both": ([X, W], BOTH, [X, W]),
    "a gradient of both by one": ([BOTH], W, [BOTH]),
    "no gradient by that of another input": ([X], W, []),
    "no rule of another kind": ([BACKWARD, ON_CPU], FAKE, []),
    "no policy of another device type": ([ON_CPU], ON_CUDA, []),
}


@each(("first", "new", "replaced"), REPLACED.values(), ids=REPLACED)
def test_what_is_replaced(first, new, replaced):
    before = registrations(*first)

    assert replaced == list(before.left_out_of(before.with_(new)))
    assert {one.title for one in before.all() if one not in replaced} | {new.title} == {
        one.title for one in before.with_(new).all()
    }


def test_a_rule_that_is_there_conflicts_with_nothing():
    before = registrations(X, FAKE)

    assert before.left_out_of(before.with_(FAKE)) == ()


def test_a_gradient_that_is_replaced_keeps_its_place():
    again = gradient_of("x")

    assert (again, W) == registrations(X, W, again).all_of(Gradient)


def test_titles_say_what_a_registration_is_for():
    dispatch = TorchDispatch("file.py:1", function, Wrapper)
    titles = [one.title for one in (BACKWARD, DROP_IN, BOTH, FAKE, ON_CPU, dispatch)]

    assert titles == ["backward", "autograd", "grad x, w", "fake", "autocast cpu", f"torch_dispatch {__name__}.Wrapper"]
