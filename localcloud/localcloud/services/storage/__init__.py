"""Cloud Storage: the JSON API v1, and of the XML API what clients use to read and write objects."""
