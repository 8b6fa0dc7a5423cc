"""One file a transform of the catalogue, by its name: what the model is told and asked for."""
