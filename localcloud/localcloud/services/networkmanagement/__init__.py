"""Network Management: Connectivity Tests, which say what reaches what, and by which rule."""
