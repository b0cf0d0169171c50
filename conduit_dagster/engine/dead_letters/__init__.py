"""Dead letters: the record for the queue, the archive that keeps what was nacked, and sending it again."""
