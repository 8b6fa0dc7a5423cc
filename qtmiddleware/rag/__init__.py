"""Retrieval for those who have none yet: documents, chunks, ingestion, hybrid search, the own retriever, answers."""
