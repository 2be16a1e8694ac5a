"""Upstream's classes of the proxies of containers. There is one class of proxies here; these tell
by `isinstance` whose proxy one is."""

from __future__ import annotations

from oneflow import nn
from oneflow.graph.proxy import Proxy

__all__ = [
    "ProxyModuleDict",
    "ProxyModuleList",
    "ProxyParameterDict",
    "ProxyParameterList",
    "ProxySequential",
]


class _ProxyOf(type):
    """A class whose instances are the proxies of the modules of a class, `of`."""

    of: type[nn.Module]

    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, Proxy) and isinstance(x.to(nn.Module), cls.of)


class ProxySequential(metaclass=_ProxyOf):
    of = nn.Sequential


class ProxyModuleList(metaclass=_ProxyOf):
    of = nn.ModuleList


class ProxyModuleDict(metaclass=_ProxyOf):
    of = nn.ModuleDict


class ProxyParameterList(metaclass=_ProxyOf):
    of = nn.ParameterList


class ProxyParameterDict(metaclass=_ProxyOf):
    of = nn.ParameterDict
