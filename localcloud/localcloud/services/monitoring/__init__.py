"""The Cloud Monitoring API: notification channels."""
