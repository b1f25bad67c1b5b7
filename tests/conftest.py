"""Lets torch compute in one thread, here and in child processes: on small tensors several threads take longer."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
