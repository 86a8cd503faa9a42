"""Autocast: under it, tensors of an op with a policy are cast before the op runs, and autocast is off within."""
