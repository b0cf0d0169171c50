"""Spark SQL over records on their way through a task: the task asks, Spark's JVM answers, in the same Spark job."""
