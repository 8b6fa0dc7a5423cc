"""What ingest stands and costs: processes killed at random, and the time beside embedding alone."""
