"""How fast the library is, beside bare floors and its peers, all in one run: `python -m benchmarks.speed`."""
