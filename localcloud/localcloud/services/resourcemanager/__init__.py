"""The Resource Manager API: projects and their IAM policies."""
