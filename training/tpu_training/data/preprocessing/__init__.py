"""From stored examples to features and labels, on the host: parsing, decoding, augmentation."""
