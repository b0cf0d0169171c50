"""Any Spark data source as a source or a destination: ``spark:FORMAT``."""
