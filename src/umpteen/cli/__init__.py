"""The command line: verbs for people, JSON for machines."""
