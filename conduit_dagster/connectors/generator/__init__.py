"""The ``generator`` source: synthetic records at any rate, identical whenever a range is read again."""
