"""Floor 3: simulated interactions, scores, statistics, reports."""
