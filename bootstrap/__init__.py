"""What the pipeline itself needs: a Pulumi program of its own, beside infra/."""
