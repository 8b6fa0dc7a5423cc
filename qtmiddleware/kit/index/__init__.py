"""An index of your own documents: ingestion, hybrid search, and a ready-made retriever."""
