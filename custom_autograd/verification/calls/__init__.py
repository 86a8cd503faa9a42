"""Calls that are drawn: a sample with changes, called in a way, and judged by one truth."""
