"""Schema registries: a folder of the project, or a server with Confluent's API."""
