"""The durable record, MLflow, reports, and artifacts: package, verify, load."""
