"""Floor 2: recipes in, checkpoints out."""
