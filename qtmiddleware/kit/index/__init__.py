"""Index your own documents, and search them by vectors and by words."""
