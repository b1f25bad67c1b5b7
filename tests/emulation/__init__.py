"""AITER's own Python on a CPU: ROCm probes and compiled modules are stood in for, all else is the installed package."""
