"""The Spark session and the state store as Dagster resources."""
