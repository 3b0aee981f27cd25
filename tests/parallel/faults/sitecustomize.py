"""Python imports this when it starts: UMPTEEN_TEST_FAULT says what the process of a rank does after five steps.

"kill 1": that of rank 1 kills itself. "hold 0": that of rank 0 takes no step until it is told to stop.
"""

import os
import signal
import time

FAULT, RANK = os.environ["UMPTEEN_TEST_FAULT"].split()

if os.environ.get("RANK") == RANK and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    from umpteen.training.loop import Loop

    train_one_step, steps = Loop._train_one_step, iter(range(4))

    def fail(loop: Loop) -> None:
        train_one_step(loop)
        if next(steps, None) is not None:
            return
        if FAULT == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        while signal.getsignal(signal.SIGTERM).signal is None:  # type: ignore[union-attr]
            time.sleep(0.01)

    Loop._train_one_step = fail  # type: ignore[method-assign]
