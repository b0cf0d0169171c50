"""Dead letters: the record for the queue, the archive of nacked records, and replay."""
