"""Scenario files: what goes wrong when, from one YAML file."""
