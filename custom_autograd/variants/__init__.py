"""The variants of an op: `op.inplace` writes into its first argument, `op.out` into tensors that the caller gives."""

from custom_autograd.variants.inplace_and_out import InplaceVariant, OutVariant
from custom_autograd.variants.variant import Variant

__all__ = ["InplaceVariant", "OutVariant", "Variant"]
