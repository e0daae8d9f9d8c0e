"""Find, download or build the Pulumi engine, its Python host and the gcp provider."""
