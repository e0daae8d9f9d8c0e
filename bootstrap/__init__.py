"""The pipeline's own resources: a second Pulumi program beside infra/."""
