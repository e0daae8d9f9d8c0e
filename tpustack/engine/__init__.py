"""The Pulumi engine: found or built, and driven by the Automation API."""
