"""Convert other formats to a data set: sources, encoding, TFRecord files and their manifest."""
