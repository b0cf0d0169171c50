"""The ``pipeline`` source: what another pipeline of the project logged, or wrote."""
