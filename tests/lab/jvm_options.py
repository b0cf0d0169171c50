"""Options of every JVM that tests start."""

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The JVM lives for seconds, so optimising compilation costs more than it gains."""
