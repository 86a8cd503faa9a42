"""Six ops of the gallery on the second device, each of another kind: every check, also those that compile."""

import pytest

from second_device.gallery import ops, problems
from slow_cases import nightly_but

pytestmark = pytest.mark.slow

OPS = ops()
KINDS = {
    "derivatives of any order": "rms_norm",
    "a mutated argument": "kv_cache_append",
    "integer arguments": "segment_reduce",
    "a list of tensors": "grouped_mm_list",
    "integer results": "top_k",
    "random numbers": "dropout",
}


@pytest.mark.parametrize("name", nightly_but("rms_norm".__eq__, KINDS.values()), ids=KINDS)
def test_every_check(name):
    assert [] == problems(OPS[name], None)
