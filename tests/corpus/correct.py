"""CORRECT: the ops without a fault that mutants are made of; no check may fail one of them."""

from corpus import bases, more_bases
from corpus.branches import CURVE, STEP
from corpus.containers import CONTAINER
from corpus.mutant import Honest, honest
from corpus.siblings import cube_in_place, cube_out

CORRECT: tuple[Honest, ...] = (
    honest("scaled_square", "elementwise, with a weight that is broadcast and a scalar", bases.SCALED_SQUARE),
    honest("rms", "a reduction with a hidden statistic", bases.RMS),
    honest("softmax", "a reduction over a chosen dimension, differentiated by its output", bases.SOFTMAX),
    honest("linear", "a matrix product with an optional input", bases.LINEAR),
    honest("join", "a list of tensors", bases.JOIN),
    honest("polar", "two outputs", bases.POLAR),
    honest("add_square", "an input that is written to", bases.ADD_SQUARE),
    honest("complex_product", "complex numbers", bases.COMPLEX_PRODUCT),
    honest("pick", "an index of integers, gathered forward and scattered back", bases.PICK),
    honest("dropout", "random numbers, with the mask kept and the tag given", bases.DROPOUT),
    honest("cube", "elementwise, of one tensor", bases.CUBE),
    honest("containers", "a NamedTuple and a dict in, a dataclass out", CONTAINER),
    honest("siblings", "variants with kernels of their own", bases.CUBE.but(inplace=cube_in_place, out=cube_out)),
    honest("numpy_cube", "a NumPy kernel", bases.NUMPY_CUBE),
    honest("once", "a backward that cannot be differentiated, and says so", bases.ONCE),
    honest("growth", "a jvp, a batching rule and an autocast rule of its own", more_bases.GROWTH),
    honest("pack", "a copy that is contiguous, whatever comes in", more_bases.PACK),
    honest("positives", "an output whose size depends on data", more_bases.POSITIVES),
    honest("peak", "a maximum, with ties", more_bases.PEAK),
    honest("channels", "images, one weight per channel", more_bases.CHANNELS),
    honest("running", "a cumulative sum, whose backward runs the other way", more_bases.RUNNING),
    honest("checked", "an input that is refused, with a message", more_bases.CHECKED),
    honest("product", "torch.library.custom_op", more_bases.PRODUCT),
    honest("square", "a torch.library.Library definition with a backward", more_bases.SQUARE),
    honest("composite", "a torch.library.Library definition of PyTorch operations", more_bases.COMPOSITE),
    honest("written_product", "a torch.autograd.Function", more_bases.WRITTEN_PRODUCT),
    honest("written_two", "a torch.autograd.Function of two outputs, with undefined gradients", more_bases.WRITTEN_TWO),
    honest("curve", "a logarithm near 1, right for small numbers", CURVE),
    honest("step", "a step of an optimizer, of which nothing has a gradient", STEP),
    honest("plain_sine", "a Python function", more_bases.PLAIN_SINE),
)
