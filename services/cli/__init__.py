"""The furlong command."""
