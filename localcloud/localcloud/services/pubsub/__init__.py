"""The Pub/Sub API: topics and their policies. There are no subscriptions, and no messages."""
