"""The ``s3`` connector: objects of a bucket as records, and records as objects, with Conduit's settings."""
