"""What a run will cost, before it starts: short measurements on this machine, then arithmetic."""
