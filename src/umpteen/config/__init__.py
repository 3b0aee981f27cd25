"""Settings of a run and the recipes that hold them."""
