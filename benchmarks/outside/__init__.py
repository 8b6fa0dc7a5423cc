"""A check on public data sets beside those the defaults were chosen by, see `__main__`."""
