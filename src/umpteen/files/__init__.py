"""Files: written whole or not at all, locked by one lock, resumable in one kind of workspace."""
