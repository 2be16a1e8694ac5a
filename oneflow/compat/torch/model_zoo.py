"""`flow.utils.model_zoo`: weights by their address, as `flow.hub` fetches them."""

from oneflow.compat.torch.hub import load_state_dict_from_url as load_url

__all__ = ["load_url"]
