"""What a passage and a question cost, and what that comes to at other sizes: the tables of docs/scale.md."""
