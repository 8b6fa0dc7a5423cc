"""Golden orders: what whole retrievals return over stored vectors, in files that every change is compared with.

    python -m tests.golden   # writes tests/golden/data: the orders, and vectors for new texts

Write them on purpose only; `git diff` shows what changed. A change that is meant to keep the order of results must not change
these files. Nothing here imports an inner module of the package, so the files survive any rebuild of
what lies inside.
"""
