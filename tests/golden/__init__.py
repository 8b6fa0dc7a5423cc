"""Golden orders: what whole retrievals return over stored vectors, in files that every change is compared with.

    python -m tests.golden           # writes tests/golden/data: the orders, and vectors for new texts
    python -m tests.golden --check   # prints the lines that would change, and exits with 1 if any would

Write them on purpose only. A change that is meant to keep the order of results must not change
these files. Nothing here imports an inner module of the package, so the files survive any rebuild of
what lies inside.
"""
