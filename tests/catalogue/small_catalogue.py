"""The labels of the small model in conftest.py."""

LABELS = {"f": "fish", "t": "tax law", "l": "library", "ключ": "図書館 — book", "d": "dog and tree"}
