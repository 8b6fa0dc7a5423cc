"""One process for each peer, run with the interpreter of its own environment (`benchmarks/quality/setup-peers`)."""
