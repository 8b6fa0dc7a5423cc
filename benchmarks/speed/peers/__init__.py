"""One process for each peer, run with the interpreter of its own environment (`benchmarks/speed/setup-peers`)."""
