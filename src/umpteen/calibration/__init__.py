"""Scores become probabilities, thresholds and rules, learnt on texts that the model was not fitted on."""
