"""CHECKS, in the order in which they run: cheap first; a new check is one class and one line here."""

from custom_autograd.verification.checks.autocast import Autocast
from custom_autograd.verification.checks.bounds import Bounds, Streams
from custom_autograd.verification.checks.cache import Cache
from custom_autograd.verification.checks.call_order import CallOrder
from custom_autograd.verification.checks.contract import Contract
from custom_autograd.verification.checks.directional import Complex, Directional
from custom_autograd.verification.checks.errors import Errors
from custom_autograd.verification.checks.explore import Explore
from custom_autograd.verification.checks.export import Export
from custom_autograd.verification.checks.fake import Fake, Symbolic
from custom_autograd.verification.checks.forward_mode import ForwardMode
from custom_autograd.verification.checks.gradcheck import Gradcheck, NonDifferentiable
from custom_autograd.verification.checks.intra_op import IntraOp
from custom_autograd.verification.checks.kernels import Kernels, Parity
from custom_autograd.verification.checks.leaks import Leaks
from custom_autograd.verification.checks.leaving import Determinism, ProcessState, SideEffects
from custom_autograd.verification.checks.linearity import Adjoint, Linearity
from custom_autograd.verification.checks.low_precision import LowPrecision
from custom_autograd.verification.checks.needs import Needs
from custom_autograd.verification.checks.nesting import Nesting
from custom_autograd.verification.checks.profiler import Profiler
from custom_autograd.verification.checks.recompilation import Recompilation
from custom_autograd.verification.checks.rows import (
    Compile,
    CompiledAutograd,
    CompiledTransforms,
    Cotangents,
    Layouts,
    Reference,
    ReferenceGradients,
    Reuse,
    SavedHooks,
    SharedInputs,
    Sizes,
    SpecialValues,
    Subclasses,
    Threads,
    Uninitialised,
    Vmap,
)
from custom_autograd.verification.checks.saved import Saved
from custom_autograd.verification.checks.schema import Opcheck, SchemaCheck
from custom_autograd.verification.checks.second_order import ForwardOverReverse, SecondOrder
from custom_autograd.verification.checks.shapes import Shapes
from custom_autograd.verification.checks.sharding import Sharding
from custom_autograd.verification.harness.base import Check

__all__ = ["CHECKS"]

CHECKS: tuple[Check, ...] = (
    SchemaCheck(),
    Errors(),
    Reference(),
    Kernels(),
    Parity(),
    Contract(),  # before what repeats one wrong shape for many sizes
    Shapes(),
    Determinism(),
    ProcessState(),
    CallOrder(),
    IntraOp(),
    SpecialValues(),
    Uninitialised(),
    Bounds(),
    SharedInputs(),
    Layouts(),
    Sizes(),
    Fake(),
    NonDifferentiable(),
    Directional(),
    Symbolic(),
    Cache(),
    SideEffects(),
    Gradcheck(),
    ReferenceGradients(),
    Linearity(),
    Cotangents(),
    Complex(),
    LowPrecision(),
    Reuse(),
    Needs(),
    Explore(),  # after the rows whose cases it leaves out
    Leaks(),
    Saved(),
    SavedHooks(),
    Autocast(),
    Subclasses(),
    Threads(),
    Profiler(),
    Streams(),
    SecondOrder(),
    ForwardMode(),
    Adjoint(),
    ForwardOverReverse(),
    Vmap(),
    Nesting(),
    Sharding(),
    Opcheck(),
    Compile(),
    Export(),
    Recompilation(),
    CompiledAutograd(),
    CompiledTransforms(),
)
