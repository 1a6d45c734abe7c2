"""Where processes run: one protocol, local processes behind it, and a fake for tests."""
