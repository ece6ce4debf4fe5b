"""A farm's door: an HTTP server at its head for whoever submits jobs and fetches results, from any
machine. Its token opens this and nothing else."""
