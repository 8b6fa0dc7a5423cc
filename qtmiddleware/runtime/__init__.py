"""Run flows: steps, drivers, threads, single flight, circuit breaker, budget, cache, forks."""
