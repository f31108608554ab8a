"""Dynamic resource allocation: prepares the resource claims of pods through DRA drivers (KEP-4381)."""
