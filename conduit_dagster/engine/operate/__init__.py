"""What an operator does to a stopped pipeline: look at its log, move offsets and positions, send one record."""
