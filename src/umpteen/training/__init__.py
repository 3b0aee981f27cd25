"""The training step and everything around it: gradient cache, optimizer, loop, checkpoints."""
