"""Calls without a Python frame of our own, and nodes without a ctx: C++ that is built for the torch at hand."""
