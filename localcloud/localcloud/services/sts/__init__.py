"""The Security Token Service: tokens of other issuers against ones for Google's APIs."""
