"""The playground: a page on this machine that asks every tier the same question, side by side."""
