"""Error classes, what codes say, the backoff policy: pure, without a clock of their own."""
