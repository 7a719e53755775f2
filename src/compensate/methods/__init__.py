"""Every method is a short composition; :data:`METHODS` is the one table of them."""

from compensate.methods.baseline import base
from compensate.methods.logit import logcomp
from compensate.methods.mixed import mixcomp
from compensate.methods.registry import METHODS, Method, find

__all__ = ["METHODS", "Method", "base", "find", "logcomp", "mixcomp"]
