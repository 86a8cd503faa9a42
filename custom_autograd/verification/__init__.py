"""Verification of ops: checks, the harness that runs them, reports, and mutation testing of rules."""
