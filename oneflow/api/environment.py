"""Libraries and tools around tensors: other frameworks, saved models, devices, processes."""

from oneflow.api.row import ALL, Row, classes

ROWS: tuple[Row, ...] = (
    *classes("utils.tensor", "utils.tensor", "from_torch to_torch", unknown=ALL),
    *classes(
        "compat.upstream.sysconfig",
        "sysconfig",
        "cmake_build_type get_compile_flags get_cuda_version get_include get_lib "
        "get_liboneflow_link_flags get_link_flags has_rpc_backend_grpc has_rpc_backend_local "
        "with_cuda with_enterprise with_mlir with_mlir_cuda_codegen with_rdma",
        unknown=ALL,
    ),
    *classes("distributed.reporting", "flow", "report", unknown=ALL),
    *classes("backends.cuda", "backends.cuda", "cuMatmulMode is_built", unknown="cuMatmulMode"),
    *classes(
        "backends.cudnn",
        "backends.cudnn",
        "enable_conv_heuristic_search_algo enable_fused_normalization_add_relu is_available "
        "set_reserved_mem_mbytes version",
        unknown="enable_conv_heuristic_search_algo enable_fused_normalization_add_relu "
        "set_reserved_mem_mbytes",
    ),
    *classes("backends.mps", "backends.mps", "is_available is_built is_macos_or_newer"),
    *classes(
        "compat.torch.jit",
        "flow",
        "Final ignore interface is_scripting is_tracing script unused",
        unknown=ALL,
    ),
    *classes(
        "profiler",
        "profiler",
        "ProfilerAction ProfilerActivity kineto_available profile record_function schedule "
        "supported_activities tensorboard_trace_handler",
        unknown="supported_activities",
    ),
    *classes(
        "profiler",
        "profiler",
        "profiler_start profiler_stop range_pop range_push",
        unknown=ALL,
    ),
    *classes(
        "compat.torch.jit",
        "jit",
        "ScriptFunction ScriptModule export ignore interface is_scripting is_tracing script "
        "script_if_tracing trace unused",
    ),
    *classes(
        "compat.torch.hub",
        "hub",
        "download_url_to_file get_dir help list load load_state_dict_from_url set_dir",
    ),
    *classes(
        "compat.torch.multiprocessing",
        "multiprocessing",
        "ProcessContext ProcessExitedException ProcessRaisedException SpawnContext "
        "get_all_sharing_strategies get_sharing_strategy set_sharing_strategy spawn "
        "start_processes unlink_all_shared_memory",
        unknown="unlink_all_shared_memory",
    ),
    *classes(
        "mock_torch",
        "mock_torch",
        "DummyModule DynamicMockModule ModuleWrapper disable enable is_enabled",
        unknown=ALL,
    ),
)
