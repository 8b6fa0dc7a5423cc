"""An index of your own documents: ingestion, hybrid search, and the retriever built on them."""
