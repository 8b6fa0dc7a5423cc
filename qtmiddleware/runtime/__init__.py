"""Run queries: steps and their drivers, threads, caches, circuit breakers and budgets."""
