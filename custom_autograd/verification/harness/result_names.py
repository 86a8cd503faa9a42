"""What messages call the results of a call: outputs by the names that rules use, and inputs that were written to."""

import re

from custom_autograd.schema.samples import Sample
from custom_autograd.schema.schema import Output
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.targets import Target


def output_names(target: Target, count: int) -> list[str]:
    """Return the names of the tensors that a call returns: 'scale'; "output 1" where the author gave no names.

    Args:
        target: what is called.
        count: how many tensors came back; hidden outputs are among them or not.
    """
    record = record_of(target)
    outputs = () if record is None else record.declaration.schema.outputs
    everything = [(name_of_output(output, position), output) for position, output in enumerate(outputs)]
    for chosen in (everything, [row for row in everything if not row[1].is_hidden]):
        names = _spread(chosen, count)
        if len(names) == count:
            return names
    return [f"output {position}" for position in range(count)]


def result_names(target: Target, sample: Sample, count: int) -> list[str]:
    """Return the names of the tensors that a call returns, then of the inputs that it writes to."""
    leaves = sample.leaves()
    written = [f"written '{target.name_of(leaves[position])}'" for position in sorted(target.written_positions(sample))]
    return [*output_names(target, count - len(written)), *written]


def name_of_output(output: Output, position: int) -> str:
    """Return the name of an output in quotes, if its author gave it one."""
    return f"output {position}" if UNNAMED.fullmatch(output.name) else f"'{output.name}'"


def _spread(rows: list[tuple[str, Output]], count: int) -> list[str]:
    """Return the names, those of the elements of a list in place of its own."""
    lists = [output for _, output in rows if output.is_tensor_list]
    if len(lists) != 1:
        return [name for name, _ in rows]
    length = count - len(rows) + 1
    spread = ([f"{name}[{i}]" for i in range(length)] if output in lists else [name] for name, output in rows)
    return [name for names in spread for name in names]


UNNAMED = re.compile(r"output(_\d+)?_*")
"""The names that a declaration gives to outputs without one."""
