"""The Cloud KMS API: key rings, symmetric keys, their versions and who may use them."""
