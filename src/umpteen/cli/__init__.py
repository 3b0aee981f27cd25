"""The command line: verbs for people, JSON for machines. Importing a file of verbs adds them to the command."""

from umpteen.cli import data, evaluate, fit, labels, parts, predict, train

__all__ = ["data", "evaluate", "fit", "labels", "parts", "predict", "train"]
