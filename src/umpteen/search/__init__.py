"""Finding the best labels for many queries."""
