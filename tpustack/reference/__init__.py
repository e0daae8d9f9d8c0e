"""Reference texts: the catalog, the settings and the known errors."""
