"""Ours beside what users run today: same split, same evaluator, same number of trials, paired differences."""
