"""Encoders turn token ids into vectors; they know nothing of datasets, losses or training."""
