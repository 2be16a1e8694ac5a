"""`torch.distributed.device_mesh`: a mesh is a placement whose axes may have names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from oneflow.core.config import current_config
from oneflow.core.errors import PlacementError
from oneflow.core.placement import Placement, lines
from oneflow.distributed.process_groups import ProcessGroup
from oneflow.functional.from_data import tensor
from oneflow.tensor.tensor import Tensor

__all__ = ["DeviceMesh", "init_device_mesh"]


class DeviceMesh:
    """Ranks in a grid.

    device_type: "cpu" or "cuda".  mesh: the ranks, as a nested list or an integer tensor; None of
    `init_device_mesh` alone.  mesh_dim_names: of the axes.

    Example::

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        mesh["tp"].size()  # 2
    """

    def __init__(
        self,
        device_type: str,
        mesh: object,
        *,
        mesh_dim_names: Sequence[str] | None = None,
        _root: DeviceMesh | None = None,
        _axes: Sequence[int] = (),
        **_: object,
    ) -> None:
        ranks = mesh.numpy() if isinstance(mesh, Tensor) else np.asarray(mesh)
        if mesh_dim_names is not None and len(mesh_dim_names) != ranks.ndim:
            raise PlacementError(
                f"DeviceMesh: {len(mesh_dim_names)} names for {ranks.ndim} axes of {ranks.tolist()}"
            )
        self.device_type = device_type
        self.mesh_dim_names = None if mesh_dim_names is None else tuple(mesh_dim_names)
        self._ranks = ranks.astype(np.int64)
        self.placement = Placement(device_type, self._ranks)
        self._root, self._axes = _root or self, tuple(_axes) or tuple(range(ranks.ndim))
        if _root is not None and self.placement.size < _root.size():
            lines.add(self.placement)
        self._groups: dict[int, ProcessGroup] = {}
        self._flat: dict[str, DeviceMesh] = {}

    @property
    def mesh(self) -> Tensor:
        """The ranks, int64."""
        return tensor(self._ranks.tolist())

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self._ranks.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of ranks along each axis."""
        return self._ranks.shape

    def size(self, mesh_dim: int | None = None) -> int:
        """Return the number of ranks, or those along an axis."""
        return int(self._ranks.size if mesh_dim is None else self._ranks.shape[mesh_dim])

    def _axis(self, mesh_dim: int | str | None) -> int:
        if isinstance(mesh_dim, str):
            names = self.mesh_dim_names or ()
            if mesh_dim not in names:
                raise KeyError(f"Invalid mesh_dim_name {mesh_dim!r}; there are {list(names)}")
            return names.index(mesh_dim)
        if mesh_dim is None and self.ndim > 1:
            raise RuntimeError(f"name one of the {self.ndim} axes of {self}")
        return mesh_dim or 0

    def get_coordinate(self) -> list[int] | None:
        """Return where this rank stands; None if it is not in the mesh."""
        rank = current_config().rank
        if rank not in self.placement:
            return None
        return list(self.placement.coordinate(rank))

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """Return this rank's number along an axis. Raises PlacementError outside of the mesh."""
        return self.placement.coordinate(current_config().rank)[self._axis(mesh_dim)]

    def get_rank(self) -> int:
        """Return this rank's number in the job."""
        return current_config().rank

    def get_group(self, mesh_dim: int | str | None = None) -> ProcessGroup:
        """Return the group of the ranks that differ from this one along an axis alone."""
        axis = self._axis(mesh_dim)
        if axis not in self._groups:
            line = self._line((axis,))
            is_flat = len(self._axes) > self.ndim
            number = 1_000_000 + sum(1 << a for a in self._axes) if is_flat else self._axes[axis]
            self._groups[axis] = ProcessGroup(line.ravel().tolist(), 1_000_000 + number)
        return self._groups[axis]

    def get_all_groups(self) -> list[ProcessGroup]:
        """Return this rank's groups along all axes."""
        return [self.get_group(axis) for axis in range(self.ndim)]

    def _line(self, axes: Sequence[int]) -> np.ndarray[Any, Any]:
        """The ranks that differ from this one along some axes alone."""
        here = self.placement.coordinate(current_config().rank)
        chosen = tuple(slice(None) if a in axes else at for a, at in enumerate(here))
        found: np.ndarray[Any, Any] = self._ranks[chosen]
        return found

    def __getitem__(self, names: str | tuple[str, ...]) -> DeviceMesh:
        wanted = (names,) if isinstance(names, str) else tuple(names)
        flat = self._flat
        if len(wanted) == 1 and wanted[0] in flat:
            return flat[wanted[0]]
        axes = [flat[name]._axes[0] if name in flat else self._axis(name) for name in wanted]
        if axes != sorted(axes):
            raise KeyError(f"axes {wanted} stand in another order in {self.mesh_dim_names}")
        if len(axes) == self.ndim:
            return self
        return DeviceMesh(
            self.device_type,
            self._line(axes),
            mesh_dim_names=wanted,
            _root=self._root,
            _axes=[self._axes[a] for a in axes],
        )

    def _flatten(self, mesh_dim_name: str | None = None) -> DeviceMesh:
        """Return a mesh of one axis with the same ranks, which the grid has under that name too."""
        name = mesh_dim_name or "_".join(self.mesh_dim_names or ())
        flat = self._root._flat
        if name not in flat:
            flat[name] = DeviceMesh(
                self.device_type,
                self._ranks.ravel(),
                mesh_dim_names=(name,),
                _root=self._root,
                _axes=self._axes,
            )
        return flat[name]

    def _unflatten(
        self,
        dim: int | str,
        mesh_sizes: Sequence[int],
        mesh_dim_names: Sequence[str],
        backend_override: object = None,
    ) -> DeviceMesh:
        """Return a mesh of the same ranks with several axes in place of one. Raises PlacementError
        if their sizes do not make up its own.
        """
        axis, sizes = self._axis(dim), tuple(mesh_sizes)
        if int(np.prod(sizes)) != self.shape[axis]:
            raise PlacementError(f"axis {dim!r} has {self.shape[axis]} ranks, not {sizes}")
        own = list(self.mesh_dim_names or (f"dim_{i}" for i in range(self.ndim)))
        names = [*own[:axis], *mesh_dim_names, *own[axis + 1 :]]
        shape = (*self.shape[:axis], *sizes, *self.shape[axis + 1 :])
        return DeviceMesh(self.device_type, self._ranks.reshape(shape), mesh_dim_names=names)

    @staticmethod
    def from_group(
        group: ProcessGroup | Sequence[ProcessGroup],
        device_type: str,
        mesh: object = None,
        *,
        mesh_dim_names: Sequence[str] | None = None,
    ) -> DeviceMesh:
        """Return the mesh of a group's ranks, or the grid `mesh`, along whose axes the groups lie.
        Raises PlacementError for several groups without one.
        """
        groups = [group] if isinstance(group, ProcessGroup) else list(group)
        if mesh is None and len(groups) > 1:
            raise PlacementError(f"from_group: {len(groups)} groups need the grid of their ranks")
        ranks = groups[0].ranks if mesh is None else mesh
        made = DeviceMesh(device_type, ranks, mesh_dim_names=mesh_dim_names)
        made._groups.update(enumerate(groups))
        return made

    def _get_root_mesh(self) -> DeviceMesh:
        return self._root

    def _is_current_rank_part_of_mesh(self) -> bool:
        return current_config().rank in self.placement

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceMesh) and self.placement == other.placement

    def __hash__(self) -> int:
        return hash(self.placement)

    def __repr__(self) -> str:
        names = "" if self.mesh_dim_names is None else f", mesh_dim_names={self.mesh_dim_names}"
        return f"DeviceMesh({self.device_type!r}, {self._ranks.tolist()}{names})"


def init_device_mesh(
    device_type: str,
    mesh_shape: Sequence[int],
    *,
    mesh_dim_names: Sequence[str] | None = None,
    backend_override: object = None,
) -> DeviceMesh:
    """Return a mesh of the first ranks in ascending order. Raises PlacementError if there are not
    so many.
    """
    count, size = int(np.prod(tuple(mesh_shape))), current_config().world_size
    if count > size:
        raise PlacementError(f"init_device_mesh: {tuple(mesh_shape)} are {count} of {size} ranks")
    ranks = np.arange(count).reshape(tuple(mesh_shape))
    return DeviceMesh(device_type, ranks, mesh_dim_names=mesh_dim_names)
