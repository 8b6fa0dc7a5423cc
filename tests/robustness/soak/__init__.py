"""Many requests at once for a long time, with faults: nothing crosses over, nothing grows, nothing is lost."""
