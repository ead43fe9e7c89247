"""What people look at: figures of a campaign run, made for pages and tables. Pure."""
