"""The live part of a model: labels that come, go and change their text while rows and trained files stay."""
