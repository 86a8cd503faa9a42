"""Machinery of the checks: targets, the runner, changed samples, derivatives, comparison and tolerances."""
