"""Run a flow's work: with threads or tasks, within deadlines and budgets, observed and logged."""
