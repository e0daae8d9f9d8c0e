"""Managed instance groups: they make instances from a template and replace those that end."""
