"""The Cloud TPU API: classic nodes, TPU VMs and queued resources."""
