"""Every kernel of every op of the gallery gives what the reference does on the op's samples, in every layout."""

import pytest

from custom_autograd import check
from custom_autograd.registration.registry import all_records
from custom_autograd.registration.rule_types import Samples
from gallery_values import GALLERY, load
from slow_cases import slow_but_every

for path in sorted(GALLERY.glob("*.py")):
    load(path.stem)
OPS = {record.name: record.handle for record in all_records() if record.name.startswith("gallery::")}
SAMPLED = {name: op for name, op in OPS.items() if op._record.registrations.get(Samples) is not None}


@pytest.mark.parametrize("op", slow_but_every(4, SAMPLED))
def test_kernels_and_layouts(op):
    check(SAMPLED[op], checks=["reference", "kernels", "layouts"], isolated=False, raise_on_failure=True)
