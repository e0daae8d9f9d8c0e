"""The Security Token Service: it exchanges other issuers' tokens for Google's."""
