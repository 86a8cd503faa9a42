"""Ops that are wrong on purpose."""
