"""Better retrieval from the function you already have."""
