"""Benchmark: how long the command line takes to say something, beside an empty Python."""

import os
import subprocess
import sys
import time
from statistics import median
from typing import Any

EMPTY = ("-c", "pass")
ASKED = {"python": EMPTY, "help": ("-m", "umpteen", "--help"), "help_of_fit": ("-m", "umpteen", "fit", "--help")}


def run(repeats: int = 5) -> dict[str, Any]:
    """Seconds on the clock and of processors: medians over runs in turns; times_python: beside an empty Python."""
    clock: dict[str, list[float]] = {name: [] for name in ASKED}
    processor: dict[str, list[float]] = {name: [] for name in ASKED}
    for _ in range(repeats):
        for name, arguments in ASKED.items():
            before, began = os.times(), time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            after = os.times()
            clock[name].append(time.perf_counter() - began)
            processor[name].append(sum(after[2:4]) - sum(before[2:4]))
    return {
        "seconds": {name: round(median(found), 3) for name, found in clock.items()},
        "processor_seconds": {name: round(median(found), 3) for name, found in processor.items()},
        "times_python": {name: round(median(clock[name]) / median(clock["python"]), 1) for name in ASKED},
    }
