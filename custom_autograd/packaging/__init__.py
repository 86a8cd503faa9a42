"""Package ops for others: libraries in wheels, namespaces of builds, and the layout of the Kernel Hub."""

from custom_autograd.packaging.namespaces import namespace

__all__ = ["namespace"]
