"""How a flow is run: steps, drivers, threads, single flight, breaker, budget, cache, forks."""
