"""The learning-rate range test (Leslie Smith, arXiv:1506.01186, section 3.3)."""
