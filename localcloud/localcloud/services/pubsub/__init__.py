"""The Pub/Sub API: topics and their policies. Messages are taken, and nobody gets them."""
