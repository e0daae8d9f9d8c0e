"""gRPC calls, each answered as the REST call that it stands for."""
