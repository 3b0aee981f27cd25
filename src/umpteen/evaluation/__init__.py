"""How good a ranking is: metrics, their uncertainty, and what users would otherwise run."""
