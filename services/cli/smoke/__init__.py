"""The smoke run: the whole loop on one machine, from preflight to evidence."""
