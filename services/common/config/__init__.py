"""The recipe: one typed, frozen tree read from TOML."""
