"""Kernels of qscheme's own, each over one library that is imported when a chosen backend is bound."""
