"""Declare ops for the ops and Functions of other code: at run time, or by rewriting its source."""
