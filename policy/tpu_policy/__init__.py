"""The rules of the policy pack, and the resources as they see them."""
