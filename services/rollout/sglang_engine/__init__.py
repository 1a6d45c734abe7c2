"""The inference engine on SGLang 0.5.20. On a CPU, `activate_cpu_engine` comes before the first import."""

from services.rollout.sglang_engine.engine import SglangEngine

__all__ = ["SglangEngine"]
