"""Processes that start at once: forked from one that has imported already what they need.

A run of Dagster's imports for three seconds before it does anything, a worker of Spark's for two; ten at the same
moment wait for each other. A *parent* imports it once and forks; it is started on demand, is the same user's, and ends
after minutes of nothing to do. Linux only, and never necessary: who does not get a child from it starts a process.
"""
