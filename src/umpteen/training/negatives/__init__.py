"""Which labels compete at a step (maths of hard negatives): all of them, or a pool drawn anew for each batch."""
