"""Once: an attribute is computed when it is first read, by one thread, and kept."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from custom_autograd.core.lazy import Once


class Holder:
    def __init__(self):
        self.lock = threading.RLock()
        self.computed = []
        self.waits = threading.Event()

    @Once
    def value(self):
        """The value."""
        self.computed.append(threading.get_ident())
        self.waits.wait(0.05)  # long enough for other threads to ask
        return object()

    @Once
    def both(self):
        return self.value, self.value

    @Once
    def nothing(self):
        self.computed.append("nothing")

    @Once
    def failing(self):
        self.computed.append("failing")
        raise ValueError(len(self.computed))


def test_a_value_is_computed_once_however_many_threads_ask():
    holder = Holder()

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: holder.value, range(8)))

    assert 1 == len(holder.computed) == len(set(map(id, found)))


def test_a_value_may_be_computed_from_another():
    holder = Holder()

    assert (holder.value, holder.value) == holder.both
    assert 1 == len(holder.computed)


def test_none_is_a_value():
    holder = Holder()

    assert holder.nothing is holder.nothing is None
    assert ["nothing"] == holder.computed


def test_what_failed_is_computed_again():
    holder = Holder()

    for _ in range(2):
        with pytest.raises(ValueError, match=r"[12]"):
            _ = holder.failing
    assert ["failing"] * 2 == holder.computed
