"""For other people's test suites: a test per op and check, and ops that are wrong on purpose to try checks on."""

from custom_autograd.testing.parametrizing import CheckCase, Test, cases_of, parametrize_checks

__all__ = ["CheckCase", "Test", "cases_of", "parametrize_checks"]
