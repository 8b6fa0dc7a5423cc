"""Index and search your own documents: ingestion, hybrid search, and a ready-made retriever."""
