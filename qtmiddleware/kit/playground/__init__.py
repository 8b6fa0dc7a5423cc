"""The playground: a local web page that asks every tier one question and compares the results."""
