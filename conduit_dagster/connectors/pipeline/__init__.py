"""The ``pipeline`` source: the logged records, or the output, of another pipeline of the project."""
