"""Who may ask for our devices, and how: rules, isolation tags and the webhook that judges both."""
