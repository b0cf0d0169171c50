"""The command line: one file per verb group, and what the verbs share."""
