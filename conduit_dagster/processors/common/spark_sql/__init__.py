"""Parts of the processor ``sql``: its query, its columns, and Spark's answers."""
