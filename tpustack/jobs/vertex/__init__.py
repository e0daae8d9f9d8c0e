"""Managed training: jobs that Vertex AI runs on TPUs of its own, as custom jobs."""
