"""The IAM API: service accounts, their policies and tokens, predefined and custom roles."""
