"""Any data source of Spark as a source or a destination: ``spark:FORMAT``."""
