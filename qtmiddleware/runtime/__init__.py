"""How a flow is run: steps, the two drivers, single flight, circuit breaker, budget, cache, threads, fork safety."""
