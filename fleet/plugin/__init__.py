"""Claims as kubelet asks for them: read, judged and handed to the node. No gRPC, no Ray."""
