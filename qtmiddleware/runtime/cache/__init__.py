"""What is remembered between questions: in this process, and where it is asked for in Redis for all of them."""

from qtmiddleware.runtime.cache.transformations import TransformationCache, digest
from qtmiddleware.runtime.cache.ttl import TTLCache

__all__ = ["TTLCache", "TransformationCache", "digest"]
