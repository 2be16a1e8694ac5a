"""Functions of neural networks, and the layers made of them."""

from oneflow.api.elementwise import ROWS as ELEMENTWISE
from oneflow.api.row import ALL, FLOAT, KEEP, Row, at, classes, layers_of, row

_ACTIVATIONS = (
    *at(
        "ops.unary",
        row("relu", "flow tensor tensor_ flow_ F F_ _C", promote=KEEP, inplace=True, layer="ReLU"),
        row("silu", "flow tensor F _C", promote=KEEP, inplace=True, layer="SiLU"),
    ),
    *at(
        "ops.activation",
        row("gelu", "flow tensor F _C", promote=KEEP, layer="GELU"),
        row("quick_gelu", "flow F _C", promote=KEEP, layer="QuickGELU", torch=None),
        row("square_relu", "flow F _C", promote=KEEP, layer="SquareReLU", torch=None),
        row("mish", "flow tensor F", promote=KEEP, inplace=True, layer="Mish"),
        row("selu", "flow flow_ tensor F F_", promote=KEEP, inplace=True, layer="SELU"),
        row("elu", "F F_", promote=KEEP, inplace=True, layer="ELU"),
        row("celu", "flow flow_ F F_", promote=KEEP, inplace=True, layer="CELU"),
        row("relu6", "F", promote=KEEP, inplace=True, layer="ReLU6"),
        row("hardsigmoid", "F", promote=KEEP, inplace=True, layer="Hardsigmoid"),
        row("hardswish", "F", promote=KEEP, inplace=True, layer="Hardswish"),
        row("hardshrink", "flow tensor F", promote=KEEP, inplace=True, layer="Hardshrink"),
        row("softplus", "flow tensor F", promote=KEEP, layer="Softplus"),
        row("softsign", "flow tensor F", promote=FLOAT, inplace=True, layer="Softsign"),
        row("logsigmoid", "F", promote=KEEP, layer="LogSigmoid"),
        row("tanhshrink", "F", promote=FLOAT, layer="Tanhshrink"),
        row("threshold", "flow flow_ F F_", promote=KEEP, inplace=True, layer="Threshold"),
        row(
            "hardtanh",
            "tensor F F_",
            promote=KEEP,
            inplace=True,
            layer="Hardtanh",
            keywords="min_value=min_val max_value=max_val",
        ),
        row(
            "leaky_relu",
            "F F_",
            promote=KEEP,
            inplace=True,
            layer="LeakyReLU",
            keywords="alpha=negative_slope",
        ),
        row(
            "softshrink",
            "flow F",
            promote=KEEP,
            inplace=True,
            layer="Softshrink",
            keywords="alpha=lambd",
        ),
    ),
    *at(
        "functional.nn.activation",
        row("softmax", "flow tensor F _C special"),
        row("log_softmax", "flow tensor F special"),
        row("softmin", "F"),
        row("gumbel_softmax", "F"),
        row("fast_gelu", "F _C", torch=None),
        row("glu", "F", layer="GLU"),
        row("prelu", "flow tensor F", keywords="alpha=weight", autocast="lower"),
        row("rrelu", "flow flow_ F F_ _C"),
        row("dropout", "flow flow_ F _C"),
        row("dropout1d", "F"),
        row("dropout2d", "F"),
        row("dropout3d", "F"),
        row("alpha_dropout", "flow F"),
        row("feature_alpha_dropout", "flow F"),
    ),
)

ROWS: tuple[Row, ...] = (
    *_ACTIVATIONS,
    *at(
        "functional.nn.convolution_and_pool",
        row("adaptive_avg_pool1d", "flow F"),
        row("adaptive_avg_pool2d", "flow F"),
        row("adaptive_avg_pool3d", "flow F", autocast="cpu"),
        row("avg_pool1d", "flow F"),
        row("avg_pool2d", "F"),
        row("avg_pool3d", "F", autocast="cpu"),
        row("conv1d", "flow F", autocast="lower"),
        row("conv2d", "flow F", autocast="lower"),
        row("conv3d", "flow F", autocast="lower"),
        row("conv_transpose1d", "flow F", autocast="lower"),
        row("conv_transpose2d", "flow F", autocast="lower"),
        row("conv_transpose3d", "flow F", autocast="lower"),
        row("conv_tbc", "flow F", autocast="lower"),
        row("max_pool1d", "flow F"),
        row("max_pool2d", "flow F"),
        row("max_pool3d", "flow F"),
        row("max_pool1d_with_indices", "flow F"),
        row("max_pool2d_with_indices", "F"),
        row("max_pool3d_with_indices", "F"),
    ),
    *at(
        "functional.nn.layers",
        row("pad", "flow F _C"),
        row("batch_norm", "F", autocast="outside"),
        row("cosine_similarity", "flow F", autocast="cuda"),
        row("embedding", "F"),
        row("group_norm", "flow F", autocast="outside cuda"),
        row("instance_norm", "F", autocast="outside cuda"),
        row("layer_norm", "flow F", autocast="outside cuda"),
        row("linear", "F"),
        row("normalize", "F _C"),
        row("pairwise_distance", "flow F"),
        row("pixel_shuffle", "flow F _C"),
        row("rms_norm", "flow F", autocast="outside cuda"),
        row("bilinear", "flow F"),
        row("local_response_norm", "F"),
        row("pixel_unshuffle", "flow F"),
        row("channel_shuffle", "flow F"),
    ),
    *at(
        "functional.nn.resize",
        row("interpolate", "F", autocast="outside"),
        row("upsample", "F", autocast="outside"),
        row("upsample_bilinear", "F", autocast="outside"),
        row("upsample_nearest", "F"),
        row("interpolate_like", "F", torch=None, autocast="outside"),
    ),
    *at(
        "functional.nn.max_pool",
        row("adaptive_max_pool1d", "F"),
        row("adaptive_max_pool2d", "F"),
        row("adaptive_max_pool3d", "F", autocast="cpu"),
        row("adaptive_max_pool1d_with_indices", "F"),
        row("adaptive_max_pool2d_with_indices", "F"),
        row("adaptive_max_pool3d_with_indices", "F", autocast="cpu"),
        row("max_unpool1d", "F", autocast="cpu"),
        row("max_unpool2d", "F", autocast="cpu"),
        row("max_unpool3d", "F", autocast="cpu"),
    ),
    *at(
        "functional.nn.lp_and_fractional_pool",
        row("lp_pool1d", "F"),
        row("lp_pool2d", "F"),
        row("lp_pool3d", "F", autocast="cpu"),
        row("fractional_max_pool2d", "F", autocast="cpu"),
        row("fractional_max_pool3d", "F", autocast="cpu"),
        row("fractional_max_pool2d_with_indices", "F", autocast="cpu"),
        row("fractional_max_pool3d_with_indices", "F", autocast="cpu"),
    ),
    *at("functional.nn.bags", row("embedding_bag", "F")),
    *at(
        "functional.nn.sampling",
        row("affine_grid", "F"),
        row("grid_sample", "F", autocast="cpu"),
        row("deform_conv2d", "flow F", torch=None),
        row("roi_align", "flow", torch=None),
        row("nms", "flow tensor", torch=None),
    ),
    *at(
        "functional.nn.margin_loss",
        row("huber_loss", "F", autocast="cpu cuda"),
        row("soft_margin_loss", "F", autocast="cpu cuda"),
        row("hinge_embedding_loss", "F", autocast="cpu cuda"),
        row("cosine_embedding_loss", "F", autocast="cpu cuda"),
        row("gaussian_nll_loss", "F"),
        row("poisson_nll_loss", "F", autocast="cpu cuda"),
        row("multi_margin_loss", "F", autocast="cpu cuda"),
        row("multilabel_margin_loss", "F", autocast="cpu cuda"),
        row("multilabel_soft_margin_loss", "F"),
        row("triplet_margin_with_distance_loss", "F"),
    ),
    *at(
        "functional.nn.attention",
        row("scaled_dot_product_attention", "F"),
    ),
    *at(
        "functional.nn.multi_head_attention",
        row("multi_head_attention_forward", "F"),
    ),
    *at(
        "functional.nn.loss",
        row("binary_cross_entropy", "F"),
        row("binary_cross_entropy_with_logits", "F"),
        row("cross_entropy", "F _C"),
        row("kl_div", "F", autocast="cpu cuda"),
        row("l1_loss", "F", autocast="cpu cuda"),
        row("margin_ranking_loss", "F", autocast="cpu cuda"),
        row("mse_loss", "F _C", autocast="cpu cuda"),
        row("nll_loss", "F"),
        row("smooth_l1_loss", "F _C"),
        row("softmax_cross_entropy", "F _C", torch=None),
        row(
            "sparse_softmax_cross_entropy",
            "F _C",
            torch=None,
            keywords="input=logits target=labels label=labels prediction=logits",
        ),
        row("triplet_margin_loss", "F _C", autocast="cpu cuda"),
    ),
    *classes(
        "nn.module",
        "nn",
        "Module",
    ),
    *layers_of((*_ACTIVATIONS, *ELEMENTWISE), "nn.modules.activation"),
    *classes("nn.modules.activation", "nn", "LogSoftmax PReLU RReLU Softmax Softmax2d Softmin"),
    *classes("nn.modules.attention", "nn", "MultiheadAttention"),
    *classes(
        "nn.modules.transformer",
        "nn",
        "Transformer TransformerDecoder TransformerDecoderLayer TransformerEncoder "
        "TransformerEncoderLayer",
    ),
    *classes(
        "nn.modules.containers",
        "nn",
        "ModuleDict ModuleList ParameterDict ParameterList Sequential",
    ),
    *classes(
        "nn.modules.conv",
        "nn",
        "Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d",
    ),
    *classes(
        "nn.modules.distance",
        "nn",
        "CosineSimilarity PairwiseDistance",
    ),
    *classes(
        "nn.modules.dropout",
        "nn",
        "AlphaDropout Dropout Dropout1d Dropout2d Dropout3d FeatureAlphaDropout",
    ),
    *classes(
        "nn.modules.linear",
        "nn",
        "Bilinear Identity Linear",
    ),
    *classes(
        "nn.modules.loss",
        "nn",
        "BCELoss BCEWithLogitsLoss CrossEntropyLoss KLDivLoss L1Loss MarginRankingLoss MSELoss "
        "NLLLoss NLLLoss2d SmoothL1Loss TripletMarginLoss CTCLoss CombinedMarginLoss",
        unknown="CombinedMarginLoss",
    ),
    *classes(
        "nn.modules.normalization",
        "nn",
        "BatchNorm1d BatchNorm2d BatchNorm3d FusedBatchNorm1d FusedBatchNorm2d FusedBatchNorm3d "
        "GroupNorm InstanceNorm1d InstanceNorm2d InstanceNorm3d LayerNorm LocalResponseNorm "
        "RMSLayerNorm RMSNorm",
        unknown="FusedBatchNorm1d FusedBatchNorm2d FusedBatchNorm3d RMSLayerNorm",
    ),
    *classes(
        "nn.modules.padding",
        "nn",
        "CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d ConstantPad3d "
        "ReflectionPad1d ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d "
        "ReplicationPad3d ZeroPad1d ZeroPad2d ZeroPad3d",
    ),
    *classes(
        "nn.modules.pooling",
        "nn",
        "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d "
        "AdaptiveMaxPool2d AdaptiveMaxPool3d AvgPool1d AvgPool2d AvgPool3d MaxPool1d MaxPool2d "
        "MaxPool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d",
    ),
    *classes(
        "nn.modules.rnn",
        "nn",
        "GRU LSTM RNN GRUCell LSTMCell RNNBase RNNCell RNNCellBase",
    ),
    *classes(
        "nn.modules.shape",
        "nn",
        "Flatten Fold Unflatten Unfold",
    ),
    *classes(
        "nn.modules.sparse",
        "nn",
        "Embedding EmbeddingBag",
    ),
    *classes(
        "nn.modules.lp_and_fractional_pooling",
        "nn",
        "FractionalMaxPool2d FractionalMaxPool3d LPPool1d LPPool2d LPPool3d",
    ),
    *classes("nn.modules.adaptive", "nn", "AdaptiveLogSoftmaxWithLoss"),
    *classes("nn.modules.sync_batchnorm", "nn", "SyncBatchNorm"),
    *classes(
        "nn.modules.margin_loss",
        "nn",
        "CosineEmbeddingLoss GaussianNLLLoss HingeEmbeddingLoss HuberLoss MultiLabelMarginLoss "
        "MultiLabelSoftMarginLoss MultiMarginLoss PoissonNLLLoss SoftMarginLoss "
        "TripletMarginWithDistanceLoss",
    ),
    *classes("compat.upstream.fused_mlp", "nn", "FusedMLP", unknown=ALL),
    *classes("nn.modules.ranks", "nn", "AllReduce DistributedPariticalFCSample", unknown=ALL),
    *classes("nn.modules.ranks", "nn", "DataParallel"),
    *at(
        "nn.modules.recurrent_calls",
        row("lstm", "flow _C"),
        row("gru", "flow _C"),
        row("rnn_tanh", "flow _C"),
        row("rnn_relu", "flow _C"),
        row("pack_padded_sequence", "_C", torch=None),
    ),
    *at(
        "nn.modules.ranks",
        row("distributed_partial_fc_sample", "flow _C", torch=None),
    ),
    *at(
        "compat.upstream.readers",
        row("OFRecordReader OfrecordReader", "nn", torch=None),
        row("OFRecordRawDecoder OfrecordRawDecoder", "nn", torch=None),
    ),
    *classes(
        "compat.upstream.readers",
        "nn",
        "OFRecordBytesDecoder OFRecordImageDecoder OFRecordImageDecoderRandomCrop "
        "OFRecordImageGpuDecoderRandomCropResize CoinFlip CropMirrorNormalize",
        unknown=ALL,
    ),
    *classes(
        "compat.upstream.file_readers",
        "nn",
        "COCOReader GPTIndexedBinDataReader RawReader",
        unknown=ALL,
    ),
    *classes(
        "compat.upstream.quantization_layers",
        "nn",
        "FakeQuantization MinMaxObserver MovingAverageMinMaxObserver Quantization",
        unknown=ALL,
    ),
    *at(
        "compat.upstream.quantization",
        row("fake_quantize_per_tensor_affine", "flow"),
        row("fake_quantize_per_channel_affine", "flow"),
    ),
    *classes("compat.upstream.qat", "nn", "QatConv1d QatConv2d QatConv3d QatLinear", unknown=ALL),
    *at(
        "functional.nn.ctc",
        row("ctc_loss", "F _C"),
        row("ctc_greedy_decoder", "F _C", torch=None),
        row("combined_margin_loss", "_C", torch=None),
    ),
    *classes(
        "nn.modules.vision",
        "nn",
        "ChannelShuffle PixelShuffle PixelUnshuffle Upsample UpsamplingBilinear2d "
        "UpsamplingNearest2d",
    ),
    *classes(
        "nn.parameter",
        "nn",
        "Buffer Parameter UninitializedBuffer UninitializedParameter",
    ),
    *classes(
        "nn.modules.lazy",
        "nn",
        "LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d LazyConv1d LazyConv2d LazyConv3d "
        "LazyConvTranspose1d LazyConvTranspose2d LazyConvTranspose3d LazyInstanceNorm1d "
        "LazyInstanceNorm2d LazyInstanceNorm3d LazyLinear",
    ),
    *classes(
        "nn.utils",
        "nn.utils",
        "ContiguousParamsGroup clip_grad_norm clip_grad_norm_ clip_grad_value_ "
        "clip_grads_with_norm_ convert_conv2d_weight_memory_format "
        "convert_conv3d_weight_memory_format fuse_conv_bn_eval fuse_conv_bn_weights "
        "fuse_linear_bn_eval fuse_linear_bn_weights get_total_norm parameters_to_vector "
        "remove_spectral_norm remove_weight_norm skip_init spectral_norm vector_to_parameters "
        "weight_norm",
        unknown="ContiguousParamsGroup",
    ),
    *classes(
        "nn.utils.parametrize",
        "nn.utils.parametrize",
        "ParametrizationList cached is_parametrized register_parametrization "
        "remove_parametrizations type_before_parametrizations",
    ),
    *classes("nn.utils.parametrizations", "nn.utils.parametrizations", "spectral_norm weight_norm"),
    *classes("nn.utils.stateless", "nn.utils.stateless", "functional_call"),
    *classes(
        "nn.utils.rnn",
        "nn.utils.rnn",
        "PackedSequence invert_permutation pack_padded_sequence pack_sequence pad_packed_sequence "
        "pad_sequence unpack_sequence unpad_sequence",
    ),
    *classes(
        "nn.utils.prune",
        "nn.utils.prune",
        "BasePruningMethod CustomFromMask Identity L1Unstructured LnStructured PruningContainer "
        "RandomStructured RandomUnstructured custom_from_mask global_unstructured identity "
        "is_pruned l1_unstructured ln_structured random_structured random_unstructured remove",
    ),
)
