"""The protocol as a searchable model, its properties and its broken versions."""
