"""Names of PyTorch that programs ask for and nothing here needs: oneflow/compat/torch.

A substitute of a whole module of PyTorch has a row in oneflow/paths.py instead.
"""

from __future__ import annotations

from oneflow.api.row import ALL, Row, at, classes, row

FOREACH = """
abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min cos cosh div erf erfc exp expm1
floor frac lerp lgamma log log10 log1p log2 maximum minimum mul neg pow reciprocal round rsqrt
sigmoid sign sin sinh sqrt sub tan tanh trunc
"""
EACH = [f"_foreach_{name}{tail}" for name in FOREACH.split() for tail in ("", "_")]
EACH += ["_foreach_clone", "_foreach_copy_", "_foreach_max", "_foreach_mm", "_foreach_norm"]
EACH += ["_foreach_powsum", "_foreach_zero_", "_amp_foreach_non_finite_check_and_unscale_"]

ROWS: tuple[Row, ...] = (
    *at("compat.torch.foreach", *(row(name, "flow") for name in EACH)),
    *classes(
        "compat.torch.settings",
        "flow",
        "get_autocast_dtype get_deterministic_debug_mode get_device_module "
        "get_float32_matmul_precision get_num_interop_threads get_num_threads "
        "is_autocast_cpu_enabled set_autocast_dtype set_default_device "
        "set_float32_matmul_precision "
        "set_num_interop_threads set_vital typename",
        unknown="set_vital",  # PyTorch warns of its own
    ),
    *classes("compat.torch.settings", "amp", "is_autocast_available"),
    *classes("tensor.grad_mode", "flow", "is_inference_mode_enabled"),
    *classes(
        "compat.torch.checks",
        "flow",
        "_assert_async _check _check_index _check_is_size _check_not_implemented "
        "_check_tensor_all _check_tensor_all_with _check_type _check_value _check_with "
        "_shape_as_tensor",
    ),
    *classes(
        "compat.torch.symbolic",
        "flow",
        "SymBool SymFloat SymInt sym_float sym_int sym_ite sym_max sym_min sym_not sym_sum",
    ),
    *classes(
        "compat.torch.layouts",
        "flow",
        "_mkldnn jagged legacy_contiguous_format sparse_bsc sparse_bsr sparse_coo sparse_csc "
        "sparse_csr",
    ),
    *at(
        "compat.torch.small",
        row("segment_reduce _segment_reduce", "flow"),
        row("_convert_indices_from_coo_to_csr", "flow"),
        row("_convert_indices_from_csr_to_coo", "flow"),
        row("to_dense", "tensor"),
        row("_cdata", "tensor", own="cdata", torch=None),
        row("grouped_mm", "F"),
        row("_grouped_mm", "flow"),
        row("_int_mm", "flow"),
        row("swap_tensors", "utils", torch="utils.swap_tensors"),
        row("_calculate_correct_fan", "nn.init", torch="nn.init._calculate_correct_fan"),
    ),
    *at(
        "compat.torch.native_functions",
        *(
            row(name, "flow", autocast="outside")
            for name in ("native_batch_norm", "native_group_norm", "native_layer_norm")
        ),
        *(
            row(name, "flow")
            for name in (
                "_log_softmax_backward_data",
                "_softmax_backward_data",
                "constant_pad_nd",
                "detach",
                "empty_permuted",
                "hash_tensor",
                "histogramdd",
                "native_dropout",
            )
        ),
        row("grid_sampler grid_sampler_2d grid_sampler_3d", "flow", autocast="cpu"),
        row("linear_cross_entropy", "F"),
        row("new_empty_strided", "tensor"),
        row("__rdiv__", "tensor", own="rdiv"),
    ),
    *classes(
        "compat.torch.selective_checkpoints",
        "utils.checkpoint",
        "CheckpointError CheckpointPolicy DefaultDeviceType SAC_IGNORED_OPS "
        "SelectiveCheckpointContext check_backward_validity create_selective_checkpoint_contexts "
        "detach_variable get_device_states noop_context_fn set_checkpoint_debug_enabled "
        "set_checkpoint_early_stop set_device_states",
        unknown=ALL,
    ),
    *classes(
        "compat.torch.initial",
        "nn.init",
        "_no_grad_fill_ _no_grad_normal_ _no_grad_trunc_normal_ _no_grad_uniform_ _no_grad_zero_ "
        "constant dirac eye kaiming_normal kaiming_uniform normal orthogonal sparse sparse_ "
        "uniform xavier_normal xavier_uniform",
    ),
    *classes("compat.torch.cuda", "flow", "OutOfMemoryError Stream"),
    *at("cuda", row("Event", "flow")),
    *classes("compat.torch.compiling", "flow", "compile"),
    *classes("compat.torch.vmap", "flow", "vmap"),
    *classes("compat.torch.futures", "flow", "Future"),
    *classes(
        "compat.torch.cuda",
        "cuda",
        "CUDAGraph ExternalStream OutOfMemoryError Stream StreamContext _is_in_bad_fork _lazy_init "
        "can_device_access_peer cudart current_stream default_stream device device_of "
        "get_arch_list graph graph_pool_handle init ipc_collect is_bf16_supported "
        "is_current_stream_capturing make_graphed_callables max_memory_allocated "
        "max_memory_cached max_memory_reserved memory_cached memory_stats memory_summary "
        "reset_accumulated_memory_stats reset_max_memory_allocated reset_max_memory_cached "
        "reset_peak_memory_stats set_per_process_memory_fraction set_stream stream",
    ),
    *classes(
        "compat.torch.sdp",
        "backends.cuda",
        "SDPAParams allow_fp16_bf16_reduction_math_sdp can_use_cudnn_attention "
        "can_use_efficient_attention can_use_flash_attention cudnn_sdp_enabled enable_cudnn_sdp "
        "enable_flash_sdp enable_math_sdp enable_mem_efficient_sdp flash_sdp_enabled "
        "fp16_bf16_reduction_math_sdp_allowed is_flash_attention_available math_sdp_enabled "
        "mem_efficient_sdp_enabled preferred_blas_library preferred_linalg_library sdp_kernel",
    ),
    *classes("compat.torch.cudnn", "backends.cudnn", "flags set_flags"),
    *classes(
        "compat.torch.jit",
        "jit",
        "Attribute RecursiveScriptModule TopLevelTracedModule TracerWarning annotate "
        "enable_onednn_fusion fork freeze fuser load optimize_for_inference save "
        "set_fusion_strategy strict_fusion trace_module wait",
    ),
    *at(
        "compat.torch.jit",
        row("isinstance", "jit", own="isinstance_"),
    ),
    *at("compat.torch.jit", row("ScriptModule", "flow", torch="ScriptModule")),
    *classes(
        "compat.torch.autograd",
        "autograd",
        "Variable _profiler_enabled detect_anomaly is_anomaly_check_nan_enabled "
        "is_anomaly_enabled set_detect_anomaly",
        unknown="_profiler_enabled is_anomaly_check_nan_enabled is_anomaly_enabled",
    ),
    *classes("compat.torch.autograd", "autograd.graph", "save_on_cpu"),
    *classes("compat.torch.gradcheck", "autograd", "gradcheck gradgradcheck"),
    *classes(
        "compat.torch.optim",
        "optim.optimizer",
        "Args Kwargs ParamsT StateDict _capturable_doc _default_to_fused_or_foreach "
        "_differentiable_doc _dispatch_sqrt _foreach_doc _fused_doc "
        "_get_capturable_supported_devices _get_value _maximize_doc _params_doc "
        "_stack_if_compiling _use_grad_for_differentiable _view_as_real required",
        unknown=ALL,
    ),
    *classes(
        "compat.torch.inner_c",
        "_C",
        "DisableTorchFunction DisableTorchFunctionSubclass _are_functorch_transforms_active "
        "_cuda_clearCublasWorkspaces _cuda_isInBadFork _disabled_torch_function_impl "
        "_get_accelerator _get_default_device _get_privateuse1_backend_name _get_tracing_state "
        "_is_torch_function_all_disabled _is_torch_function_enabled "
        "_is_torch_function_mode_enabled _jit_can_fuse_on_cpu _jit_can_fuse_on_gpu "
        "_jit_override_can_fuse_on_cpu _jit_override_can_fuse_on_gpu _jit_set_nvfuser_enabled "
        "_jit_set_nvfuser_guard_mode _jit_set_profiling_executor _jit_set_profiling_mode "
        "_jit_set_texpr_fuser_enabled _parse_to _set_math_sdp_allow_fp16_bf16_reduction",
        unknown=ALL,
    ),
    *classes(
        "compat.torch.distributed",
        "distributed",
        "Backend DebugLevel DistBackendError DistError DistNetworkError DistStoreError FileStore "
        "GroupMember HashStore P2POp PrefixStore ProcessGroup QueueEmptyError Store TCPStore Work "
        "_get_default_group _get_default_store _rank_not_in_group all_reduce_coalesced "
        "batch_isend_irecv destroy_process_group get_backend get_backend_config get_debug_level "
        "get_default_backend_for_device get_global_rank get_pg_count is_backend_available "
        "get_group_rank get_node_local_rank get_process_group_ranks group init_process_group "
        "is_gloo_available is_initialized is_mpi_available is_nccl_available "
        "is_torchelastic_launched is_ucc_available is_xccl_available monitored_barrier "
        "new_group new_subgroups new_subgroups_by_enumeration set_debug_level "
        "set_debug_level_from_env split_group supports_complex",
        unknown="_get_default_group _get_default_store _rank_not_in_group get_backend_config",
    ),
    *classes("compat.torch.device_mesh", "distributed", "DeviceMesh init_device_mesh"),
    *at(
        "compat.torch.subclasses",
        row("as_subclass", "tensor"),
        row("_make_subclass", "tensor", own="make_subclass", torch=None),
        row("_make_wrapper_subclass", "tensor", own="make_wrapper_subclass", torch=None),
        row("_subclassed", "tensor", own="take_subclass", torch=None),
    ),
    *at(
        "compat.torch.dtensor",
        row("redistribute", "tensor", torch=None),
        row("full_tensor", "tensor", torch=None),
        row("placements", "tensor", torch=None),
        row("_local_tensor", "tensor", own="local_tensor", torch=None),
        row("_spec", "tensor", own="spec", torch=None),
        row("device_mesh", "tensor", torch=None),
    ),
    *classes(
        "compat.torch.data",
        "utils.data.dataloader",
        "_DatasetKind _InfiniteConstantSampler _collate_fn_t _sharding_worker_init_fn "
        "_worker_init_fn_t",
        unknown=ALL,
    ),
    *at("utils.data.worker", row("get_worker_info", "utils.data.dataloader", torch=None)),
    *classes("compat.torch.libraries", "utils", "load_library", unknown="load_library"),
    *classes(
        "compat.torch.distributions",
        "distributions.utils",
        "_standard_normal _sum_rightmost broadcast_all euler_constant lazy_property",
    ),
    *classes("compat.torch.distributions", "distributions.transforms", "_InverseTransform"),
    *classes("compat.torch.distributions", "distributions", "LogisticNormal"),
    *classes(
        "compat.torch.distribution_families",
        "distributions",
        "ContinuousBernoulli FisherSnedecor GeneralizedPareto InverseGamma Kumaraswamy VonMises",
    ),
    *classes(
        "compat.torch.distribution_matrices",
        "distributions",
        "ExponentialFamily LKJCholesky LowRankMultivariateNormal Wishart",
    ),
    *at(
        "compat.torch.distribution_transforms",
        *(
            row(name, "distributions distributions.transforms")
            for name in (
                "CorrCholeskyTransform",
                "CumulativeDistributionTransform",
                "PositiveDefiniteTransform",
                "StackTransform",
            )
        ),
    ),
    *classes(
        "compat.torch.distribution_transforms",
        "distributions.constraints",
        "MixtureSameFamilyConstraint _CorrCholesky _PositiveSemidefinite corr_cholesky "
        "positive_semidefinite",
    ),
    *classes("compat.torch.constraint_registry", "distributions", "biject_to transform_to"),
    *classes(
        "compat.torch.sparse",
        "flow",
        "_nested_view_from_buffer _scaled_mm dsmm hspmm smm sparse_bsc_tensor sparse_bsr_tensor "
        "sparse_compressed_tensor sparse_coo_tensor sparse_csc_tensor sparse_csr_tensor spmm",
    ),
    *classes(
        "compat.torch.sparse",
        "tensor",
        "ccol_indices coalesce col_indices crow_indices indices is_coalesced row_indices "
        "sparse_mask to_sparse to_sparse_coo to_sparse_csc to_sparse_csr values",
    ),
)
