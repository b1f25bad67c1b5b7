"""Programs in Triton's own language, which looks like Python and is read by its compiler alone."""
