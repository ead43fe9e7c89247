"""Any PCIe accelerator, through sysfs alone: reset, link, errors and holders; memory unread."""
