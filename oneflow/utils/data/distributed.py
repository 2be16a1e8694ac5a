"""The sampler of data-parallel ranks, under the name that scripts import it by."""

from oneflow.utils.data.sampler import DistributedSampler

__all__ = ["DistributedSampler"]
