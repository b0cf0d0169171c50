"""Processes that start at once: forked from a *parent* that has already imported what they need.

A Dagster run spends three seconds on imports before it does anything, a Spark worker two; ten that start at the same
moment wait for each other. A parent imports once and forks. It is started on demand, belongs to the same user, and ends
after some idle minutes. Linux only, and always optional: if no child can be forked, the client starts a process
normally.
"""
