"""What an API server does to objects that it admits: unknown fields, defaults, validation, warnings; and UIDs of static pods."""
