"""One thread for the arithmetic: several, waiting for each other on a busy machine, are many times slower than one."""

from __future__ import annotations

import os

# Read once, when numpy is first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
