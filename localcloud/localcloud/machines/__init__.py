"""The processes behind emulated VMs and TPUs."""
