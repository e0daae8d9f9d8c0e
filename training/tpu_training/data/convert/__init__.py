"""From somebody's files to a data set: sources, encoding, TFRecord files and their manifest."""
