"""Google's queue for TPU VMs as Pulumi resources of this project's own.

The provider's `gcp.tpu.V2QueuedResource` has no field for capacity, deadline, account, metadata or
labels, ends before there is a TPU, and cannot delete a request whose TPU VM stands (it never sends
`force`). Two dynamic resources on the TPU API take its place: `QueuedRequest` is the request, made
and deleted as a whole; `QueuedNode` waits for its TPU VMs and knows their endpoints.
"""
