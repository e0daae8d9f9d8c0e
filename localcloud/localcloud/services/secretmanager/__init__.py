"""The Secret Manager API: secrets, their versions and policies. Versions are never destroyed."""
