"""Turns the ops and Functions of other code into ops of this package: at run time, or by rewriting its source."""
