"""Inlining: references in place of ops in compiled graphs."""
