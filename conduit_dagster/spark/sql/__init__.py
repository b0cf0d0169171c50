"""Spark SQL over records inside a task: the task sends questions to Spark's JVM and gets answers in the same job."""
