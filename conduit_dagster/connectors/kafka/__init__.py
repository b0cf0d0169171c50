"""The ``kafka`` connector: a source of topics, and an exactly-once destination."""
