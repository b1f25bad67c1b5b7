"""Mutants of the YAML of AITER's backends: each one must be caught, or be shown to change nothing."""
