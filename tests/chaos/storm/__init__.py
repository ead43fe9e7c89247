"""A storm: one real system that lives on while its processes, sockets and disks are struck."""
