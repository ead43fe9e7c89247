"""Kill -9 around kubelet's calls: the plugin, the owner of the node, and its workers."""
