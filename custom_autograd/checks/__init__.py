"""CHECKS, in the order in which they run: cheap first; a new check is one file and one line here."""

from custom_autograd.checks.adjoint import Adjoint
from custom_autograd.checks.autocast import Autocast
from custom_autograd.checks.base import Check
from custom_autograd.checks.bounds import Bounds
from custom_autograd.checks.cache import Cache
from custom_autograd.checks.compile import Compile
from custom_autograd.checks.compiled_autograd import CompiledAutograd
from custom_autograd.checks.compiled_transforms import CompiledTransforms
from custom_autograd.checks.complex import Complex
from custom_autograd.checks.contract import Contract
from custom_autograd.checks.cotangents import Cotangents
from custom_autograd.checks.determinism import Determinism
from custom_autograd.checks.directional import Directional
from custom_autograd.checks.errors import Errors
from custom_autograd.checks.export import Export
from custom_autograd.checks.fake import Fake
from custom_autograd.checks.forward_mode import ForwardMode
from custom_autograd.checks.forward_over_reverse import ForwardOverReverse
from custom_autograd.checks.gradcheck import Gradcheck
from custom_autograd.checks.kernels import Kernels
from custom_autograd.checks.layouts import Layouts
from custom_autograd.checks.leaks import Leaks
from custom_autograd.checks.linearity import Linearity
from custom_autograd.checks.low_precision import LowPrecision
from custom_autograd.checks.needs import Needs
from custom_autograd.checks.nesting import Nesting
from custom_autograd.checks.non_differentiable import NonDifferentiable
from custom_autograd.checks.opcheck import Opcheck
from custom_autograd.checks.parity import Parity
from custom_autograd.checks.process_state import ProcessState
from custom_autograd.checks.profiler import Profiler
from custom_autograd.checks.recompilation import Recompilation
from custom_autograd.checks.reference import Reference
from custom_autograd.checks.reference_gradients import ReferenceGradients
from custom_autograd.checks.reuse import Reuse
from custom_autograd.checks.saved import Saved
from custom_autograd.checks.saved_hooks import SavedHooks
from custom_autograd.checks.schema import Schema
from custom_autograd.checks.second_order import SecondOrder
from custom_autograd.checks.shared_inputs import SharedInputs
from custom_autograd.checks.sizes import Sizes
from custom_autograd.checks.special_values import SpecialValues
from custom_autograd.checks.streams import Streams
from custom_autograd.checks.subclasses import Subclasses
from custom_autograd.checks.symbolic import Symbolic
from custom_autograd.checks.threads import Threads
from custom_autograd.checks.uninitialised import Uninitialised
from custom_autograd.checks.vmap import Vmap

__all__ = ["CHECKS"]

CHECKS: tuple[Check, ...] = (
    Schema(),
    Errors(),
    Reference(),
    Kernels(),
    Parity(),
    Determinism(),
    ProcessState(),
    SpecialValues(),
    Uninitialised(),
    Bounds(),
    SharedInputs(),
    Layouts(),
    Sizes(),
    Fake(),
    Contract(),
    NonDifferentiable(),
    Directional(),
    Symbolic(),
    Cache(),
    Gradcheck(),
    ReferenceGradients(),
    Linearity(),
    Cotangents(),
    Complex(),
    LowPrecision(),
    Reuse(),
    Needs(),
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
    Opcheck(),
    Compile(),
    Export(),
    Recompilation(),
    CompiledAutograd(),
    CompiledTransforms(),
)
