"""CDI specs: the files through which a container runtime gives a container our devices."""
