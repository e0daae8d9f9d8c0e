"""The emulator's own API: it looks into the cloud and breaks it on purpose."""
