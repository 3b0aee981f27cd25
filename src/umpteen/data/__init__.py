"""Datasets: labels, queries, and which belongs to which, memory-mapped from any known format."""
