"""The read side: what can be seen, computed from the log and nothing else."""
