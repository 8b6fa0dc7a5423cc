"""What stands behind the protocols: language models, embedders, rerankers and stores, a file or folder a vendor."""
