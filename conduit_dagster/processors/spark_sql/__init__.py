"""The parts of the processor ``sql``: its query, its columns, and what Spark answers."""
