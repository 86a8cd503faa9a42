"""One sample -> the same call of other sizes, and the smallest that still fails."""

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample


def subsets(size: int) -> Iterator[tuple[int, ...]]:
    """Yield every non-empty subset of `size` positions, the full one first.

    Beyond 4 only all, all but one, and each.
    """
    everything = tuple(range(size))
    if size <= 4:
        for length in range(size, 0, -1):
            yield from itertools.combinations(everything, length)
        return
    yield everything
    yield from itertools.combinations(everything, size - 1)
    yield from itertools.combinations(everything, 1)


def representatives(samples: Sequence[tuple[int, Sample]], most: int | None) -> Sequence[tuple[int, Sample]]:
    """Return at most so many samples with their positions, one of each kind first; empty tensors come last."""
    if most is None or len(samples) <= most:
        return samples
    kinds: dict[object, int] = {}
    order = sorted(samples, key=lambda row: any(tensor.numel() == 0 for tensor in row[1].tensors()))
    firsts = [row for row in order if kinds.setdefault(_kind(row[1]), row[0]) == row[0]]
    chosen = [*firsts, *(row for row in order if row not in firsts)][:most]
    return sorted(chosen, key=lambda row: row[0])


def _kind(sample: Sample) -> object:
    """Return what two calls have in common that differ in sizes and numbers only."""
    leaves = tuple((leaf.argument, leaf.path, leaf.tensor.dim(), leaf.tensor.dtype) for leaf in sample.leaves())
    return leaves, tuple(sorted(sample.kwargs)), tuple(type(value) for value in sample.args)


def sizes_of(sample: Sample) -> frozenset[int]:
    """Return the sizes above 1 of all dimensions of all tensors; dimensions of equal size count as the same one."""
    return frozenset(size for tensor in sample.tensors() for size in tensor.shape if size > 1)


def elements_of(sample: Sample, sizes: Mapping[int, int]) -> int:
    """Return how many elements the largest tensor would have with other sizes."""
    return max((math.prod(sizes.get(size, size) for size in x.shape) for x in sample.tensors()), default=0)


def free_sizes(sample: Sample, *, has_judge: bool = False) -> frozenset[int]:
    """Return the sizes above 1 that can vary without a change of meaning: no argument fixes them by its value."""
    fixed = _numbers([*sample.args, *sample.kwargs.values()]) | pinned_sizes(sample, has_judge=has_judge)
    return sizes_of(sample) - fixed


def pinned_sizes(sample: Sample, *, has_judge: bool = False) -> frozenset[int]:
    """Return the sizes that tensors of integers have or fix: where offsets end, and what lengths add up to.

    Such a tensor is never resized, repeated or redrawn: only the author of the op can say what its numbers point at.
    Where a reference judges, integers of 8 bits, and those of a sample that has no other numbers, are its data.
    """
    data = data_positions(sample) if has_judge else frozenset()
    found: set[int] = set()
    for position, tensor in enumerate(sample.tensors()):
        if is_index(tensor):
            largest = int(tensor.detach().max()) if tensor.numel() else 0
            fixed = {largest, largest + 1, int(tensor.detach().sum())}
            found |= set() if position in data else {*tensor.shape, *fixed}
    return frozenset(found)


def data_positions(sample: Sample) -> frozenset[int]:
    """Return which tensors of integers are what is computed with: codes of 8 bits, or all if there are no others."""
    tensors = sample.tensors()
    has_others = any(x.is_floating_point() or x.is_complex() for x in tensors)
    return frozenset(i for i, x in enumerate(tensors) if is_index(x) and (x.dtype.itemsize == 1 or not has_others))


def is_index(tensor: Tensor) -> bool:
    """Return True if the numbers of a tensor may point at something: it is dense, and holds integers."""
    is_integral = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    return is_integral and tensor.layout == torch.strided and not tensor.is_quantized


def has_arithmetic(tensor: Tensor) -> bool:
    """Return True if the dtype is floating or complex and PyTorch calculates in it: it only stores 8-bit floats."""
    return (tensor.is_floating_point() or tensor.is_complex()) and tensor.dtype.itemsize > 1


def is_ordered(tensor: Tensor) -> bool:
    """Return True if a tensor of real numbers has one dimension and ascends, as edges do; some may be equal."""
    is_real = has_arithmetic(tensor) and not tensor.is_complex()
    if not is_real or tensor.layout != torch.strided or tensor.dim() != 1 or tensor.numel() < 2:
        return False
    return ascends(tensor) and bool(tensor[0] < tensor[-1])


def ascends(tensor: Tensor) -> bool:
    """Return True if no number is smaller than the one before it, in logical order."""
    flat = tensor.detach().reshape(-1)
    return bool((flat[1:] >= flat[:-1]).all())


def _numbers(value: object) -> frozenset[int]:
    """Return every integer in a value, containers entered."""
    if isinstance(value, (list, tuple, dict)):
        items = value.values() if isinstance(value, dict) else value
        return frozenset[int]().union(*(_numbers(item) for item in items))
    return frozenset([value]) if isinstance(value, int) else frozenset()


def growths(sample: Sample, factor: int = 3) -> Iterator[dict[int, int]]:
    """Yield arguments of `resized`: all free sizes times a factor, then each alone; indices stay within bounds."""
    free = sorted(free_sizes(sample))
    if free:
        yield {size: factor * size for size in free}
    if len(free) > 1:
        yield from ({size: factor * size} for size in free)


def resized(sample: Sample, sizes: Mapping[int, int], *, with_numbers: bool = False, has_judge: bool = False) -> Sample:
    """Return the same call with other sizes: tensors are cut or repeated, but for those of integers.

    Args:
        sample: what to vary.
        sizes: old size -> new size; every dimension of the old size gets the new one.
        with_numbers: whether integers among the arguments that equal a size follow it.
        has_judge: whether a reference says which sizes of integers are right: see `pinned_sizes`.
    """
    data = data_positions(sample) if has_judge else frozenset()

    def resize(tensor: Tensor, position: int) -> Tensor:
        if tensor.layout != torch.strided or (is_index(tensor) and position not in data):
            return tensor
        found = tensor.detach()
        if is_ordered(found) and sizes.get(found.numel(), 0) > 1:
            return _stretched(found, sizes[found.numel()]).requires_grad_(tensor.requires_grad)
        for dim, size in enumerate(tensor.shape):
            wanted = sizes.get(size, size)
            if wanted != size:
                positions = torch.arange(wanted, device=tensor.device) % max(size, 1)
                found = found.index_select(dim, positions)
        return found.clone(memory_format=torch.contiguous_format).requires_grad_(tensor.requires_grad)

    def follow(value: object) -> object:
        return sizes.get(value, value) if isinstance(value, int) and not isinstance(value, bool) else value

    changed = sample.with_tensors([resize(tensor, position) for position, tensor in enumerate(sample.tensors())])
    if not with_numbers:
        return changed
    args = [follow(value) for value in changed.args]
    return changed.with_arguments(args, {name: follow(value) for name, value in changed.kwargs.items()})


def _stretched(tensor: Tensor, size: int) -> Tensor:
    """Return so many numbers from the first to the last, in steps that are not all equal: repeated, they would fall."""
    steps = torch.linspace(0, 1, size, dtype=torch.float64, device=tensor.device)
    return (tensor[0] + (tensor[-1] - tensor[0]) * (0.9 * steps + 0.1 * steps.square())).to(tensor.dtype)


def copy(sample: Sample) -> Sample:
    """Return the sample with copies of its tensors, strides kept, which do not require grad.

    Overlapping memory (stride 0) becomes memory of its own.
    """
    return sample.map(lambda tensor: tensor.detach().clone())


LONGEST_SEARCH = 2.0  # s; a search that is cut short still gives a sample that fails
MOST_ATTEMPTS = 60


def shrink(sample: Sample, fails: Callable[[Sample], bool]) -> Sample | None:
    """Return the smallest sample found that fails as the given one does.

    Args:
        sample: a call that fails.
        fails: whether a call fails in the same way.

    Returns:
        None if not even the given sample fails again.
    """
    if not fails(sample):
        return None
    deadline, attempts = time.perf_counter() + LONGEST_SEARCH, 0
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in _candidates(sample):
            attempts += 1
            if attempts > MOST_ATTEMPTS or time.perf_counter() > deadline:
                return sample
            if fails(candidate):
                sample, is_smaller = candidate, True
                break
    return sample


def _candidates(sample: Sample) -> Iterator[Sample]:
    """Yield what is simpler than a sample by one step, the largest steps first."""
    for name, value in sample.kwargs.items():
        if not isinstance(value, Tensor):
            yield sample.with_arguments(sample.args, {key: row for key, row in sample.kwargs.items() if key != name})
    if all(tensor.is_floating_point() or tensor.is_complex() for tensor in sample.tensors()):
        yield from _smaller(sample)  # what an integer tensor points at must not become smaller
    for decimals in (0, 1):
        rounded = sample.map(functools.partial(_rounded, decimals=decimals))
        pairs = zip(rounded.tensors(), sample.tensors(), strict=True)
        if any(one is not other and not torch.equal(one, other) for one, other in pairs):
            yield rounded


def _smaller(sample: Sample) -> Iterator[Sample]:
    for size in sorted(sizes_of(sample), reverse=True):
        for other in sorted({1, 2, size // 2, size - 1}):
            if 0 < other < size:
                yield resized(sample, {size: other})


def _rounded(tensor: Tensor, *, decimals: int) -> Tensor:
    if not has_arithmetic(tensor) or tensor.is_complex() or tensor.layout != torch.strided:
        return tensor
    return tensor.detach().round(decimals=decimals).requires_grad_(tensor.requires_grad)
