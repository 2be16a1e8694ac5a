"""Type stub made from the public table (oneflow/api) by docs/stubs.py."""

from oneflow.compat.upstream import qat as qat
from oneflow.compat.upstream.file_readers import COCOReader as COCOReader
from oneflow.compat.upstream.file_readers import GPTIndexedBinDataReader as GPTIndexedBinDataReader
from oneflow.compat.upstream.file_readers import RawReader as RawReader
from oneflow.compat.upstream.fused_mlp import FusedMLP as FusedMLP
from oneflow.compat.upstream.qat import QatConv1d as QatConv1d
from oneflow.compat.upstream.qat import QatConv2d as QatConv2d
from oneflow.compat.upstream.qat import QatConv3d as QatConv3d
from oneflow.compat.upstream.qat import QatLinear as QatLinear
from oneflow.compat.upstream.quantization_layers import FakeQuantization as FakeQuantization
from oneflow.compat.upstream.quantization_layers import MinMaxObserver as MinMaxObserver
from oneflow.compat.upstream.quantization_layers import MovingAverageMinMaxObserver as MovingAverageMinMaxObserver
from oneflow.compat.upstream.quantization_layers import Quantization as Quantization
from oneflow.compat.upstream.readers import CoinFlip as CoinFlip
from oneflow.compat.upstream.readers import CropMirrorNormalize as CropMirrorNormalize
from oneflow.compat.upstream.readers import OFRecordBytesDecoder as OFRecordBytesDecoder
from oneflow.compat.upstream.readers import OFRecordImageDecoder as OFRecordImageDecoder
from oneflow.compat.upstream.readers import OFRecordImageDecoderRandomCrop as OFRecordImageDecoderRandomCrop
from oneflow.compat.upstream.readers import OFRecordImageGpuDecoderRandomCropResize as OFRecordImageGpuDecoderRandomCropResize
from oneflow.compat.upstream.readers import OFRecordRawDecoder as OFRecordRawDecoder
from oneflow.compat.upstream.readers import OFRecordRawDecoder as _readers_OFRecordRawDecoder
from oneflow.compat.upstream.readers import OFRecordReader as OFRecordReader
from oneflow.compat.upstream.readers import OFRecordReader as _readers_OFRecordReader
from oneflow.core.operand import Number
from oneflow.graph.graph import Graph as Graph
from oneflow.nn import functional as functional
from oneflow.nn import graph as graph
from oneflow.nn import init as init
from oneflow.nn import modules as modules
from oneflow.nn import parallel as parallel
from oneflow.nn import parameter as parameter
from oneflow.nn import quantized as quantized
from oneflow.nn import utils as utils
from oneflow.nn.module import Module as Module
from oneflow.nn.modules.activation import LogSoftmax as LogSoftmax
from oneflow.nn.modules.activation import PReLU as PReLU
from oneflow.nn.modules.activation import RReLU as RReLU
from oneflow.nn.modules.activation import Softmax as Softmax
from oneflow.nn.modules.activation import Softmax2d as Softmax2d
from oneflow.nn.modules.activation import Softmin as Softmin
from oneflow.nn.modules.adaptive import AdaptiveLogSoftmaxWithLoss as AdaptiveLogSoftmaxWithLoss
from oneflow.nn.modules.attention import MultiheadAttention as MultiheadAttention
from oneflow.nn.modules.containers import ModuleDict as ModuleDict
from oneflow.nn.modules.containers import ModuleList as ModuleList
from oneflow.nn.modules.containers import ParameterDict as ParameterDict
from oneflow.nn.modules.containers import ParameterList as ParameterList
from oneflow.nn.modules.containers import Sequential as Sequential
from oneflow.nn.modules.conv import Conv1d as Conv1d
from oneflow.nn.modules.conv import Conv2d as Conv2d
from oneflow.nn.modules.conv import Conv3d as Conv3d
from oneflow.nn.modules.conv import ConvTranspose1d as ConvTranspose1d
from oneflow.nn.modules.conv import ConvTranspose2d as ConvTranspose2d
from oneflow.nn.modules.conv import ConvTranspose3d as ConvTranspose3d
from oneflow.nn.modules.distance import CosineSimilarity as CosineSimilarity
from oneflow.nn.modules.distance import PairwiseDistance as PairwiseDistance
from oneflow.nn.modules.dropout import AlphaDropout as AlphaDropout
from oneflow.nn.modules.dropout import Dropout as Dropout
from oneflow.nn.modules.dropout import Dropout1d as Dropout1d
from oneflow.nn.modules.dropout import Dropout2d as Dropout2d
from oneflow.nn.modules.dropout import Dropout3d as Dropout3d
from oneflow.nn.modules.dropout import FeatureAlphaDropout as FeatureAlphaDropout
from oneflow.nn.modules.lazy import LazyBatchNorm1d as LazyBatchNorm1d
from oneflow.nn.modules.lazy import LazyBatchNorm2d as LazyBatchNorm2d
from oneflow.nn.modules.lazy import LazyBatchNorm3d as LazyBatchNorm3d
from oneflow.nn.modules.lazy import LazyConv1d as LazyConv1d
from oneflow.nn.modules.lazy import LazyConv2d as LazyConv2d
from oneflow.nn.modules.lazy import LazyConv3d as LazyConv3d
from oneflow.nn.modules.lazy import LazyConvTranspose1d as LazyConvTranspose1d
from oneflow.nn.modules.lazy import LazyConvTranspose2d as LazyConvTranspose2d
from oneflow.nn.modules.lazy import LazyConvTranspose3d as LazyConvTranspose3d
from oneflow.nn.modules.lazy import LazyInstanceNorm1d as LazyInstanceNorm1d
from oneflow.nn.modules.lazy import LazyInstanceNorm2d as LazyInstanceNorm2d
from oneflow.nn.modules.lazy import LazyInstanceNorm3d as LazyInstanceNorm3d
from oneflow.nn.modules.lazy import LazyLinear as LazyLinear
from oneflow.nn.modules.linear import Bilinear as Bilinear
from oneflow.nn.modules.linear import Identity as Identity
from oneflow.nn.modules.linear import Linear as Linear
from oneflow.nn.modules.loss import BCELoss as BCELoss
from oneflow.nn.modules.loss import BCEWithLogitsLoss as BCEWithLogitsLoss
from oneflow.nn.modules.loss import CTCLoss as CTCLoss
from oneflow.nn.modules.loss import CombinedMarginLoss as CombinedMarginLoss
from oneflow.nn.modules.loss import CrossEntropyLoss as CrossEntropyLoss
from oneflow.nn.modules.loss import KLDivLoss as KLDivLoss
from oneflow.nn.modules.loss import L1Loss as L1Loss
from oneflow.nn.modules.loss import MSELoss as MSELoss
from oneflow.nn.modules.loss import MarginRankingLoss as MarginRankingLoss
from oneflow.nn.modules.loss import NLLLoss as NLLLoss
from oneflow.nn.modules.loss import NLLLoss2d as NLLLoss2d
from oneflow.nn.modules.loss import SmoothL1Loss as SmoothL1Loss
from oneflow.nn.modules.loss import TripletMarginLoss as TripletMarginLoss
from oneflow.nn.modules.lp_and_fractional_pooling import FractionalMaxPool2d as FractionalMaxPool2d
from oneflow.nn.modules.lp_and_fractional_pooling import FractionalMaxPool3d as FractionalMaxPool3d
from oneflow.nn.modules.lp_and_fractional_pooling import LPPool1d as LPPool1d
from oneflow.nn.modules.lp_and_fractional_pooling import LPPool2d as LPPool2d
from oneflow.nn.modules.lp_and_fractional_pooling import LPPool3d as LPPool3d
from oneflow.nn.modules.margin_loss import CosineEmbeddingLoss as CosineEmbeddingLoss
from oneflow.nn.modules.margin_loss import GaussianNLLLoss as GaussianNLLLoss
from oneflow.nn.modules.margin_loss import HingeEmbeddingLoss as HingeEmbeddingLoss
from oneflow.nn.modules.margin_loss import HuberLoss as HuberLoss
from oneflow.nn.modules.margin_loss import MultiLabelMarginLoss as MultiLabelMarginLoss
from oneflow.nn.modules.margin_loss import MultiLabelSoftMarginLoss as MultiLabelSoftMarginLoss
from oneflow.nn.modules.margin_loss import MultiMarginLoss as MultiMarginLoss
from oneflow.nn.modules.margin_loss import PoissonNLLLoss as PoissonNLLLoss
from oneflow.nn.modules.margin_loss import SoftMarginLoss as SoftMarginLoss
from oneflow.nn.modules.margin_loss import TripletMarginWithDistanceLoss as TripletMarginWithDistanceLoss
from oneflow.nn.modules.normalization import BatchNorm1d as BatchNorm1d
from oneflow.nn.modules.normalization import BatchNorm2d as BatchNorm2d
from oneflow.nn.modules.normalization import BatchNorm3d as BatchNorm3d
from oneflow.nn.modules.normalization import FusedBatchNorm1d as FusedBatchNorm1d
from oneflow.nn.modules.normalization import FusedBatchNorm2d as FusedBatchNorm2d
from oneflow.nn.modules.normalization import FusedBatchNorm3d as FusedBatchNorm3d
from oneflow.nn.modules.normalization import GroupNorm as GroupNorm
from oneflow.nn.modules.normalization import InstanceNorm1d as InstanceNorm1d
from oneflow.nn.modules.normalization import InstanceNorm2d as InstanceNorm2d
from oneflow.nn.modules.normalization import InstanceNorm3d as InstanceNorm3d
from oneflow.nn.modules.normalization import LayerNorm as LayerNorm
from oneflow.nn.modules.normalization import LocalResponseNorm as LocalResponseNorm
from oneflow.nn.modules.normalization import RMSLayerNorm as RMSLayerNorm
from oneflow.nn.modules.normalization import RMSNorm as RMSNorm
from oneflow.nn.modules.padding import CircularPad1d as CircularPad1d
from oneflow.nn.modules.padding import CircularPad2d as CircularPad2d
from oneflow.nn.modules.padding import CircularPad3d as CircularPad3d
from oneflow.nn.modules.padding import ConstantPad1d as ConstantPad1d
from oneflow.nn.modules.padding import ConstantPad2d as ConstantPad2d
from oneflow.nn.modules.padding import ConstantPad3d as ConstantPad3d
from oneflow.nn.modules.padding import ReflectionPad1d as ReflectionPad1d
from oneflow.nn.modules.padding import ReflectionPad2d as ReflectionPad2d
from oneflow.nn.modules.padding import ReflectionPad3d as ReflectionPad3d
from oneflow.nn.modules.padding import ReplicationPad1d as ReplicationPad1d
from oneflow.nn.modules.padding import ReplicationPad2d as ReplicationPad2d
from oneflow.nn.modules.padding import ReplicationPad3d as ReplicationPad3d
from oneflow.nn.modules.padding import ZeroPad1d as ZeroPad1d
from oneflow.nn.modules.padding import ZeroPad2d as ZeroPad2d
from oneflow.nn.modules.padding import ZeroPad3d as ZeroPad3d
from oneflow.nn.modules.pooling import AdaptiveAvgPool1d as AdaptiveAvgPool1d
from oneflow.nn.modules.pooling import AdaptiveAvgPool2d as AdaptiveAvgPool2d
from oneflow.nn.modules.pooling import AdaptiveAvgPool3d as AdaptiveAvgPool3d
from oneflow.nn.modules.pooling import AdaptiveMaxPool1d as AdaptiveMaxPool1d
from oneflow.nn.modules.pooling import AdaptiveMaxPool2d as AdaptiveMaxPool2d
from oneflow.nn.modules.pooling import AdaptiveMaxPool3d as AdaptiveMaxPool3d
from oneflow.nn.modules.pooling import AvgPool1d as AvgPool1d
from oneflow.nn.modules.pooling import AvgPool2d as AvgPool2d
from oneflow.nn.modules.pooling import AvgPool3d as AvgPool3d
from oneflow.nn.modules.pooling import MaxPool1d as MaxPool1d
from oneflow.nn.modules.pooling import MaxPool2d as MaxPool2d
from oneflow.nn.modules.pooling import MaxPool3d as MaxPool3d
from oneflow.nn.modules.pooling import MaxUnpool1d as MaxUnpool1d
from oneflow.nn.modules.pooling import MaxUnpool2d as MaxUnpool2d
from oneflow.nn.modules.pooling import MaxUnpool3d as MaxUnpool3d
from oneflow.nn.modules.ranks import AllReduce as AllReduce
from oneflow.nn.modules.ranks import DataParallel as DataParallel
from oneflow.nn.modules.ranks import DistributedPariticalFCSample as DistributedPariticalFCSample
from oneflow.nn.modules.rnn import GRU as GRU
from oneflow.nn.modules.rnn import GRUCell as GRUCell
from oneflow.nn.modules.rnn import LSTM as LSTM
from oneflow.nn.modules.rnn import LSTMCell as LSTMCell
from oneflow.nn.modules.rnn import RNN as RNN
from oneflow.nn.modules.rnn import RNNBase as RNNBase
from oneflow.nn.modules.rnn import RNNCell as RNNCell
from oneflow.nn.modules.rnn import RNNCellBase as RNNCellBase
from oneflow.nn.modules.shape import Flatten as Flatten
from oneflow.nn.modules.shape import Fold as Fold
from oneflow.nn.modules.shape import Unflatten as Unflatten
from oneflow.nn.modules.shape import Unfold as Unfold
from oneflow.nn.modules.sparse import Embedding as Embedding
from oneflow.nn.modules.sparse import EmbeddingBag as EmbeddingBag
from oneflow.nn.modules.sync_batchnorm import SyncBatchNorm as SyncBatchNorm
from oneflow.nn.modules.transformer import Transformer as Transformer
from oneflow.nn.modules.transformer import TransformerDecoder as TransformerDecoder
from oneflow.nn.modules.transformer import TransformerDecoderLayer as TransformerDecoderLayer
from oneflow.nn.modules.transformer import TransformerEncoder as TransformerEncoder
from oneflow.nn.modules.transformer import TransformerEncoderLayer as TransformerEncoderLayer
from oneflow.nn.modules.vision import ChannelShuffle as ChannelShuffle
from oneflow.nn.modules.vision import PixelShuffle as PixelShuffle
from oneflow.nn.modules.vision import PixelUnshuffle as PixelUnshuffle
from oneflow.nn.modules.vision import Upsample as Upsample
from oneflow.nn.modules.vision import UpsamplingBilinear2d as UpsamplingBilinear2d
from oneflow.nn.modules.vision import UpsamplingNearest2d as UpsamplingNearest2d
from oneflow.nn.parameter import Buffer as Buffer
from oneflow.nn.parameter import Parameter as Parameter
from oneflow.nn.parameter import UninitializedBuffer as UninitializedBuffer
from oneflow.nn.parameter import UninitializedParameter as UninitializedParameter
from oneflow.tensor.tensor import Tensor

class CELU(Module):
    alpha: float
    inplace: bool
    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
class ELU(Module):
    alpha: float
    inplace: bool
    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
class GELU(Module):
    approximate: str
    def __init__(self, approximate: str = 'none') -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
class GLU(Module):
    dim: int
    def __init__(self, dim: int = -1) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
class Hardshrink(Module):
    lambd: float
    inplace: bool
    def __init__(self, lambd: float = 0.5, inplace: bool = False) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
class Hardsigmoid(Module):
    inplace: bool
    def __init__(self, inplace: bool = False) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
class Hardswish(Module):
    inplace: bool
    def __init__(self, inplace: bool = False) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
class Hardtanh(Module):
    min_val: Number
    max_val: Number
    inplace: bool
    def __init__(self, min_val: Number = -1.0, max_val: Number = 1.0, inplace: bool = False, *, min_value: Number = ..., max_value: Number = ...) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
class LeakyReLU(Module):
    negative_slope: float
    inplace: bool
    def __init__(self, negative_slope: float = 0.01, inplace: bool = False, *, alpha: float = ...) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
class LogSigmoid(Module):
    def __init__(self) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
class Mish(Module):
    inplace: bool
    def __init__(self, inplace: bool = False) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
OfrecordRawDecoder = _readers_OFRecordRawDecoder
OfrecordReader = _readers_OFRecordReader
class QuickGELU(Module):
    def __init__(self) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
class ReLU(Module):
    inplace: bool
    def __init__(self, inplace: bool = False) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
class ReLU6(Module):
    inplace: bool
    def __init__(self, inplace: bool = False) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
class SELU(Module):
    inplace: bool
    def __init__(self, inplace: bool = False) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
class SiLU(Module):
    inplace: bool
    def __init__(self, inplace: bool = False) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
class Sigmoid(Module):
    def __init__(self) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
class Softplus(Module):
    beta: float
    threshold: float
    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
class Softshrink(Module):
    lambd: float
    inplace: bool
    def __init__(self, lambd: float = 0.5, inplace: bool = False, *, alpha: float = ...) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
class Softsign(Module):
    inplace: bool
    def __init__(self, inplace: bool = False) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
class SquareReLU(Module):
    def __init__(self) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
class Tanh(Module):
    def __init__(self) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
class Tanhshrink(Module):
    def __init__(self) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
class Threshold(Module):
    threshold: float
    value: Number
    inplace: bool
    def __init__(self, threshold: float, value: Number, inplace: bool = False) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
