"""The Vertex AI API: custom jobs, whose containers run as processes of a machine each."""
