"""The trainer service: claims groups, trains, publishes versions."""
