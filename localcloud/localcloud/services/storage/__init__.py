"""Cloud Storage: the JSON API, and the part of the XML API that reads and writes objects."""
