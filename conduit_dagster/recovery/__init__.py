"""Error classes, and later the backoff policy: pure, without a clock of their own."""
