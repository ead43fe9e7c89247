"""What can be measured of the fleet: the catalogue, and how views become figures. Pure."""
