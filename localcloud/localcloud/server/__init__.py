"""The HTTPS proxy with its own certificate authority, through which clients reach the APIs."""
