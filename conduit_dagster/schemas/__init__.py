"""Schema registries: a folder of the project, or one that speaks Confluent's API."""
