"""The Cloud Logging API: what the serial ports of VMs have sent to it."""
