"""How the words of a question weigh beside scores: the fit of the formula, see `__main__`."""
