"""Durable state: positions, steps, deliveries, leases, the dead-letter index, history."""
