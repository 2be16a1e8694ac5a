"""Type stub made from the public table (oneflow/api) by docs/stubs.py."""

from oneflow.autograd import function as function
from oneflow.autograd import functional as functional
from oneflow.autograd import graph as graph
from oneflow.autograd.api import backward as backward
from oneflow.autograd.api import grad as grad
from oneflow.autograd.function import Function as Function
from oneflow.autograd.function import FunctionCtx as FunctionCtx
from oneflow.autograd.function import once_differentiable as once_differentiable
from oneflow.autograd.functional import hessian as hessian
from oneflow.autograd.functional import hvp as hvp
from oneflow.autograd.functional import jacobian as jacobian
from oneflow.autograd.functional import jvp as jvp
from oneflow.autograd.functional import vhp as vhp
from oneflow.autograd.functional import vjp as vjp
from oneflow.compat.torch.autograd import Variable as Variable
from oneflow.compat.torch.autograd import _profiler_enabled as _profiler_enabled
from oneflow.compat.torch.autograd import detect_anomaly as detect_anomaly
from oneflow.compat.torch.autograd import is_anomaly_check_nan_enabled as is_anomaly_check_nan_enabled
from oneflow.compat.torch.autograd import is_anomaly_enabled as is_anomaly_enabled
from oneflow.compat.torch.autograd import set_detect_anomaly as set_detect_anomaly
from oneflow.compat.torch.gradcheck import gradcheck as gradcheck
from oneflow.compat.torch.gradcheck import gradgradcheck as gradgradcheck
from oneflow.tensor.grad_mode import enable_grad as enable_grad
from oneflow.tensor.grad_mode import inference_mode as inference_mode
from oneflow.tensor.grad_mode import is_grad_enabled as is_grad_enabled
from oneflow.tensor.grad_mode import no_grad as no_grad
from oneflow.tensor.grad_mode import set_grad_enabled as set_grad_enabled

