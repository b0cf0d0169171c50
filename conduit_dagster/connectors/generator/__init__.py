"""The ``generator`` source: synthetic records at any rate, the same ones whenever a range is read again."""
