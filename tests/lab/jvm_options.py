"""Options of every JVM that tests start."""

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""It lives for seconds, so compiling well costs more than it gives."""
