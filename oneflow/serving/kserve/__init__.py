"""Graphs for clients of KServe and Triton: the Open Inference Protocol over HTTP and gRPC."""
