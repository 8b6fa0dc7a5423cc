"""One converter a source: reads its files and makes collections of them."""
