"""The model behind HTTP: requests gathered into batches, labels changed while it runs, limits, metrics, the page."""
