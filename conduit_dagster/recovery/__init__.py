"""Error classes, classification by error code, and backoff policy: pure, with no clock of their own."""
