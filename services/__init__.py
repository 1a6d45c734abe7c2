"""Furlong: reinforcement learning for GLM-4.5-class models, as small gRPC services."""
