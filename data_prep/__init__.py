"""Floor 1: what the data are. Imports no torch."""
