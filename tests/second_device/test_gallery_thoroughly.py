"""Six ops of the gallery on the second device, each of another kind: every check, also those that compile."""

import pytest

from second_device.gallery import ops, problems

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


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS.values(), ids=KINDS)
def test_every_check(name):
    assert [] == problems(OPS[name], None)
