"""Data sets, orders of samples, and loaders of batches."""

from oneflow.surfaces import accept_paths
from oneflow.utils.data import distributed
from oneflow.utils.data.collate import default_collate, default_convert
from oneflow.utils.data.dataloader import DataLoader, DatasetKind
from oneflow.utils.data.datapipes import (
    IterDataPipe,
    MapDataPipe,
    functional_datapipe,
    guaranteed_datapipes_determinism,
    non_deterministic,
)
from oneflow.utils.data.dataset import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from oneflow.utils.data.sampler import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from oneflow.utils.data.worker import WorkerInfo, get_worker_info

_DatasetKind = DatasetKind

__all__ = [
    "BatchSampler",
    "ChainDataset",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "IterDataPipe",
    "IterableDataset",
    "MapDataPipe",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "StackDataset",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "WorkerInfo",
    "default_collate",
    "default_convert",
    "distributed",
    "functional_datapipe",
    "get_worker_info",
    "guaranteed_datapipes_determinism",
    "non_deterministic",
    "random_split",
]


accept_paths(__name__)
