"""Benchmarks: speed as a ratio to a named alternative, in one run, with an A/A control: ``make bench``.

See docs/benchmarks.md.
"""
