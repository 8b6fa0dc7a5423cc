"""An own index: ingestion of documents, hybrid search over a store, and the retriever made of both."""
