"""What must outlive a process: positions, steps, deliveries, leases, the dead-letter index, history."""
