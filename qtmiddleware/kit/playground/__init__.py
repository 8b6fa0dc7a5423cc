"""The playground: a local web page that compares the search results of several configurations."""
