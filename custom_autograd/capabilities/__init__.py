"""CAPABILITIES: the subsystems of PyTorch that learn about an op, in the order in which they attach."""

from custom_autograd.capabilities.autocast import AutocastCapability
from custom_autograd.capabilities.autograd import ForwardModeCapability, ReverseModeCapability
from custom_autograd.capabilities.checkpoint import Checkpointing
from custom_autograd.capabilities.compile_cache import CompileCache
from custom_autograd.capabilities.effects import Effects
from custom_autograd.capabilities.fake_rules import FakeCapability
from custom_autograd.capabilities.flops import FlopCounting
from custom_autograd.capabilities.inlining import Inlining
from custom_autograd.capabilities.kernel_rules import KernelsCapability
from custom_autograd.capabilities.reference_rules import VARIANTS
from custom_autograd.capabilities.shape_notation import ShapeNotation
from custom_autograd.capabilities.subclasses import SubclassesCapability
from custom_autograd.capabilities.vmap import VmapCapability
from custom_autograd.registration.capability import Capability
from custom_autograd.sharding.sharded_calls import ShardingCapability

CAPABILITIES: tuple[Capability, ...] = (
    KernelsCapability(),
    ShapeNotation(),
    FakeCapability(),
    ReverseModeCapability(),
    ForwardModeCapability(),
    VmapCapability(),
    AutocastCapability(),
    SubclassesCapability(),
    ShardingCapability(),
    Checkpointing(),
    Effects(),
    FlopCounting(),
    Inlining(),
    CompileCache(),
    *VARIANTS,
)
