"""Command line: one file per verb group, and the code that the verbs share."""
