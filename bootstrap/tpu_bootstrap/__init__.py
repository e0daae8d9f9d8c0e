"""The pipeline's own resources: a second Pulumi program next to infra/."""
