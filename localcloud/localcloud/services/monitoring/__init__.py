"""The Cloud Monitoring API: notification channels, and alerting policies on log entries."""
