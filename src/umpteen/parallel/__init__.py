"""The processes of a run: who is there, what they say to each other, and which rows are whose."""
