"""Organization policies: what an organization forbids in a project."""
