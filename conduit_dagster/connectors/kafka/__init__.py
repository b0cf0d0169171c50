"""Kafka: topics as a source, and as a destination that is written exactly once."""
