"""Recovery and lifecycle of pipelines. Nothing in ``assets`` depends on it: a run works without sensors."""
