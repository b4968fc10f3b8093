"""torch 2.13, recorded from 2.13.0 by scripts/record_torch.py."""

from straightline.torch_private.records.shape import Record, Shape

RECORD: Record = {
    "torch._C": {
        "_DisableAutocast": Shape("class"),
        "_autocast_supported_devices": Shape("builtin"),
        "_dispatch_get_all_op_names": Shape("builtin"),
        "_dispatch_has_kernel_for_dispatch_key": Shape(
            "builtin",
            parts=(
                "arg0",
                "arg1",
            ),
        ),
        "_get_obj_in_tls": Shape(
            "builtin",
            parts=("arg0",),
        ),
        "_is_any_autocast_enabled": Shape("builtin"),
        "_is_key_in_tls": Shape(
            "builtin",
            parts=("arg0",),
        ),
        "_is_view_replay_enabled": Shape("builtin"),
        "_set_grad_enabled": Shape("builtin"),
        "_set_view_replay_enabled": Shape("builtin"),
    },
    "torch._C._autograd": {
        "CreationMeta": Shape(
            "class",
            attributes=(
                "IN_CUSTOM_FUNCTION",
                "name",
            ),
        ),
        "CreationMeta.IN_CUSTOM_FUNCTION": Shape("value"),
        "SavedTensor": Shape(
            "class",
            attributes=(
                "register_hooks",
                "unpack",
            ),
        ),
        "_get_creation_meta": Shape(
            "builtin",
            parts=("arg0",),
        ),
        "_get_current_graph_task_keep_graph": Shape("builtin"),
        "_make_saved_tensor": Shape(
            "builtin",
            parts=(
                "tensor",
                "is_output",
                "is_inplace_on_view",
            ),
        ),
        "_saved_tensors_hooks_disable": Shape(
            "builtin",
            parts=(
                "error_message",
                "fail_if_non_empty",
            ),
        ),
        "_saved_tensors_hooks_enable": Shape("builtin"),
        "_saved_tensors_hooks_get_disabled_error_message": Shape("builtin"),
        "_top_saved_tensors_default_hooks": Shape(
            "builtin",
            parts=("arg0",),
        ),
        "_unsafe_set_version_counter": Shape(
            "builtin",
            parts=(
                "arg0",
                "arg1",
            ),
        ),
    },
    "torch._C._dynamo.eval_frame": {
        "_FrameAction": Shape(
            "class",
            attributes=(
                "SKIP",
                "name",
            ),
        ),
        "_FrameAction.SKIP": Shape("value"),
        "_FrameExecStrategy": Shape("class"),
        "_debug_get_cache_entry_list": Shape(
            "builtin",
            parts=("arg0",),
        ),
        "reset_code": Shape("builtin"),
        "set_code_exec_strategy": Shape("builtin"),
    },
    "torch._C._dynamo.guards": {
        "_empty_strided_cpu": Shape("builtin"),
    },
    "torch._C._functionalization": {
        "apply_view_meta_sequence": Shape(
            "builtin",
            parts=(
                "arg0",
                "arg1",
            ),
        ),
    },
    "torch._C._functorch": {
        "peek_interpreter_stack": Shape("builtin"),
    },
    "torch._C._profiler": {
        "_RecordFunctionFast": Shape("class"),
    },
    "torch._dynamo": {
        "lookup_backend": Shape(
            "function",
            parts=("compiler_fn",),
        ),
    },
    "torch._dynamo.backends.common": {
        "aot_autograd": Shape(
            "function",
            parts=("**kwargs",),
        ),
    },
    "torch._dynamo.callback": {
        "CallbackTrigger": Shape(
            "enum",
            parts=(
                "DYNAMO",
                "LAZY_BACKWARD",
                "TRITON_AUTOTUNING",
                "CUDAGRAPH_RECORDING",
            ),
        ),
        "callback_handler": Shape("value"),
    },
    "torch._dynamo.compiled_autograd": {
        "_disable": Shape("function"),
        "in_compiled_autograd_region": Shape("value"),
    },
    "torch._dynamo.config": {
        "force_compile_during_fx_trace": Shape("value"),
        "record_runtime_overhead": Shape("value"),
    },
    "torch._dynamo.convert_frame": {
        "compile_lock": Shape("value"),
    },
    "torch._dynamo.eval_frame": {
        "OptimizedModule": Shape(
            "class",
            parts=(
                "mod",
                "dynamo_ctx",
            ),
        ),
        "_TorchDynamoContext": Shape(
            "class",
            parts=(
                "callback",
                "on_enter=",
                "backend_ctx_ctor=",
                "patch_fn=",
                "first_ctx=",
                "*",
                "fullgraph=",
                "error_on_graph_break=",
                "export=",
                "dynamic=",
                "compiler_config=",
                "package=",
                "hooks=",
                "isolate_recompiles=",
                "shapes_spec=",
            ),
        ),
        "innermost_backend": Shape(
            "function",
            parts=("fn",),
        ),
        "innermost_fn": Shape(
            "function",
            parts=("fn",),
        ),
    },
    "torch._dynamo.exc": {
        "TensorifyScalarRestartAnalysis": Shape(
            "class",
            parts=(
                "*args",
                "restart_reason=",
            ),
        ),
        "TorchDynamoException": Shape(
            "class",
            parts=(
                "*args",
                "**kwargs",
            ),
        ),
    },
    "torch._dynamo.external_utils": {
        "wrap_inline": Shape(
            "function",
            parts=("fn",),
        ),
    },
    "torch._dynamo.guards": {
        "GuardBuilder": Shape(
            "class",
            parts=(
                "f_code",
                "id_ref",
                "source_ref",
                "lookup_weakrefs",
                "local_scope",
                "global_scope",
                "guard_manager",
                "check_fn_manager",
                "save_guards=",
                "runtime_global_scope=",
                "guard_filter_fn=",
            ),
            attributes=(
                "SET_CONTAINS",
                "SET_NOT_CONTAINS",
                "code",
                "get",
            ),
        ),
        "GuardBuilder.SET_CONTAINS": Shape(
            "function",
            parts=(
                "self",
                "guard",
                "key",
            ),
        ),
        "GuardBuilder.SET_NOT_CONTAINS": Shape(
            "function",
            parts=(
                "self",
                "guard",
                "key",
            ),
        ),
        "install_guard": Shape(
            "function",
            parts=(
                "*guards",
                "skip=",
            ),
        ),
    },
    "torch._dynamo.source": {
        "AttrSource": Shape(
            "dataclass",
            parts=(
                "base",
                "member",
            ),
            attributes=(
                "clone",
                "make_guard",
                "name",
            ),
        ),
        "ImportSource": Shape(
            "dataclass",
            parts=("module_name",),
            attributes=(
                "clone",
                "make_guard",
                "name",
            ),
        ),
    },
    "torch._dynamo.utils": {
        "GmWrapper": Shape(
            "class",
            parts=(
                "gm",
                "unflatten_fn",
            ),
            attributes=("forward",),
        ),
        "counters": Shape("value"),
        "flatten_graph_inputs": Shape(
            "function",
            parts=(
                "gm",
                "inputs",
                "compile_gm",
            ),
        ),
    },
    "torch._functorch._aot_autograd.collect_metadata_analysis": {
        "coerce_tangent_and_suggest_memory_format": Shape(
            "function",
            parts=("x",),
        ),
        "run_functionalized_fw_and_collect_metadata": Shape(
            "function",
            parts=(
                "f",
                "*",
                "flat_args_descs",
                "keep_input_mutations",
                "static_input_indices=",
                "pre_dispatch=",
            ),
        ),
    },
    "torch._functorch._aot_autograd.descriptors": {
        "AOTInput": Shape(
            "dataclass",
            attributes=("expr",),
        ),
        "AOTOutput": Shape(
            "dataclass",
            attributes=("expr",),
        ),
        "DifferentiableAOTOutput": Shape(
            "dataclass",
            attributes=("expr",),
        ),
        "IntermediateBaseAOTOutput": Shape(
            "dataclass",
            parts=("base_of",),
            attributes=("expr",),
        ),
        "PlainAOTInput": Shape(
            "dataclass",
            parts=("idx",),
            attributes=("expr",),
        ),
        "PlainAOTOutput": Shape(
            "dataclass",
            parts=("idx",),
            attributes=("expr",),
        ),
        "TangentAOTInput": Shape(
            "dataclass",
            parts=("output",),
            attributes=("expr",),
        ),
    },
    "torch._functorch._aot_autograd.functional_utils": {
        "ViewMetaSequence": Shape(
            "class",
            parts=("tensor",),
            attributes=(
                "metadata",
                "sequence",
            ),
        ),
        "from_fun": Shape(
            "function",
            parts=("t",),
        ),
    },
    "torch._functorch._aot_autograd.graph_capture_wrappers": {
        "disable_autocast": Shape("function"),
        "fn_prepped_for_autograd": Shape(
            "function",
            parts=(
                "fn",
                "args_descs",
                "meta",
                "aot_config",
            ),
        ),
    },
    "torch._functorch._aot_autograd.graph_compile": {
        "_aot_stage2a_partition": Shape(
            "function",
            parts=(
                "fx_g",
                "joint_inputs",
                "maybe_subclass_meta",
                "fw_metadata",
                "aot_config",
                "partition_fn",
            ),
        ),
        "_apply_tensorify_python_scalars": Shape(
            "function",
            parts=("module",),
        ),
        "aot_stage1_graph_capture": Shape(
            "function",
            parts=(
                "aot_state",
                "orig_flat_fn",
            ),
        ),
        "run_joint_graph_passes_on_hops": Shape(
            "function",
            parts=(
                "joint_gm",
                "joint_inputs",
                "aot_config",
                "*",
                "default_partition_fn=",
            ),
        ),
    },
    "torch._functorch._aot_autograd.input_output_analysis": {
        "compute_overlapping_inputs": Shape(
            "function",
            parts=(
                "aot_config",
                "fwd_inputs",
                "aliased_input_indices",
            ),
        ),
    },
    "torch._functorch._aot_autograd.runtime_wrappers": {
        "AOTDedupeWrapper": Shape(
            "dataclass",
            parts=(
                "keep_arg_mask",
                "add_dupe_map",
                "old_input_metadata",
                "needs_post_compile",
            ),
        ),
        "AOTSyntheticBaseWrapper": Shape(
            "dataclass",
            parts=(
                "trace_joint",
                "needs_post_compile",
                "aliased_arg_idx_with_metadata_mutations",
                "base_groups",
                "other_arg_indices",
            ),
        ),
        "AutogradLazyBackwardCompileInfo": Shape(
            "dataclass",
            parts=(
                "bw_module",
                "placeholder_list",
                "saved_context",
                "saved_compile_context",
            ),
        ),
        "_AnalyzeCustomOpInputOutputMode": Shape("class"),
        "_codegen_backward_epilogue": Shape(
            "function",
            parts=(
                "fw_metadata",
                "maybe_subclass_meta",
                "codegen_wrap_fn",
            ),
        ),
        "_codegen_backward_prologue": Shape(
            "function",
            parts=(
                "fw_metadata",
                "maybe_subclass_meta",
                "codegen_unwrap_fn",
            ),
        ),
        "make_runtime_safe": Shape(
            "function",
            parts=(
                "fw_metadata",
                "maybe_subclass_meta",
            ),
        ),
        "pre_compile": Shape(
            "function",
            parts=(
                "wrappers",
                "flat_fn",
                "flat_args",
                "flat_args_descs",
                "aot_config",
                "*",
                "fw_metadata",
            ),
        ),
    },
    "torch._functorch._aot_autograd.schemas": {
        "AOTAutogradCacheInfo": Shape(
            "dataclass",
            parts=(
                "cache_key",
                "start_time_ns",
                "forward_symints",
            ),
        ),
        "AOTConfig": Shape(
            "dataclass",
            parts=(
                "fw_compiler",
                "bw_compiler",
                "partition_fn",
                "decompositions",
                "num_params_buffers",
                "aot_id",
                "keep_inference_input_mutations",
                "is_export",
                "no_tangents",
                "dynamic_shapes",
                "aot_autograd_arg_pos_to_source",
                "static_input_indices",
                "inference_compiler",
                "enable_log",
                "pre_dispatch",
                "cache_info",
                "ignore_shape_env",
                "precompile_backend_id",
                "force_non_lazy_backward_lowering",
                "export_trace_joint",
                "disable_functionalization",
                "_disable_torch_fn_metadata_mode",
            ),
        ),
        "AOTGraphCapture": Shape(
            "dataclass",
            parts=(
                "wrappers",
                "graph_module",
                "updated_flat_args",
                "updated_flat_args_descs",
                "maybe_subclass_meta",
            ),
        ),
        "AOTState": Shape(
            "dataclass",
            parts=(
                "needs_autograd",
                "flat_args",
                "flat_args_descs",
                "fw_metadata",
                "aot_config",
                "stack",
                "fake_mode",
            ),
        ),
        "FakifiedFlatArgs": Shape("builtin"),
        "InputAliasInfo": Shape(
            "dataclass",
            parts=(
                "is_leaf",
                "mutates_data",
                "mutates_metadata",
                "mutations_hidden_from_autograd",
                "mutations_under_no_grad_or_inference_mode",
                "mutation_inductor_storage_resize",
                "mutates_storage_metadata",
                "requires_grad",
                "keep_input_mutations",
            ),
            attributes=("mutation_type",),
        ),
        "MemoryFormatMeta": Shape(
            "dataclass",
            parts=(
                "size",
                "stride",
                "memory_format",
            ),
            attributes=("from_tensor",),
        ),
        "MutationType": Shape(
            "enum",
            parts=(
                "NOT_MUTATED",
                "MUTATED_IN_GRAPH",
                "MUTATED_OUT_GRAPH",
            ),
        ),
        "OpaqueMeta": Shape("dataclass"),
        "OutputAliasInfo": Shape(
            "dataclass",
            parts=(
                "output_type",
                "raw_type",
                "base_idx",
                "dynamic_dims",
                "requires_grad",
                "requires_grad_for_backward",
                "view_meta_sequence",
            ),
        ),
        "OutputType": Shape(
            "enum",
            parts=(
                "non_alias",
                "alias_of_input",
                "is_input",
                "alias_of_intermediate_save_as_output",
                "alias_of_intermediate",
                "alias_of_intermediate_base_is_user_output",
                "unsafe_view_alias",
                "custom_function_view",
            ),
        ),
        "PlainTensorMeta": Shape(
            "dataclass",
            parts=(
                "unwrapped_idx",
                "memory_format",
            ),
        ),
        "SubclassCreationMeta": Shape(
            "dataclass",
            parts=(
                "flat_tensor_start_idx",
                "arg_count",
                "included_subclass_symints",
                "attrs",
                "outer_size",
                "outer_stride",
                "meta",
                "original_subclass",
                "original_subclass_type",
                "memory_format",
            ),
        ),
        "SubclassMeta": Shape(
            "dataclass",
            parts=(
                "fw_metadata",
                "grad_input_metas",
            ),
        ),
        "ViewAndMutationMeta": Shape(
            "dataclass",
            parts=(
                "input_info",
                "output_info",
                "num_intermediate_bases",
                "keep_input_mutations",
                "traced_tangents",
                "traced_tangents_descs",
                "subclass_inp_meta",
                "subclass_fw_graph_out_meta",
                "subclass_tangent_meta",
                "traced_tangent_metas",
                "num_symints_saved_for_bw",
                "num_tensors_saved_with_no_vc_check",
                "num_opaque_objects_saved_for_bw",
                "grad_enabled_mutation",
                "deterministic",
                "static_input_indices",
                "act_input_indices",
                "tokens",
                "indices_of_inputs_that_requires_grad_with_mutations_in_bw",
                "bw_donated_idxs",
                "num_backward_tokens",
                "num_graphsafe_rng_states",
                "graphsafe_rng_state_index",
                "graphsafe_rng_device",
                "mutated_inp_stream_indices",
                "compile_id_str",
                "tangent_source_stack_traces",
            ),
            attributes=(
                "dynamic_saved_tensors_idxs",
                "is_rng_op_functionalized",
                "mutated_inp_runtime_indices",
                "num_forward_returns",
                "num_mutated_inp_runtime_indices",
                "num_outputs",
                "num_outputs_rng_offset",
            ),
        ),
    },
    "torch._functorch._aot_autograd.subclass_codegen": {
        "codegen_backward_subclass_fns": Shape(
            "function",
            parts=("grad_input_metas=",),
        ),
    },
    "torch._functorch._aot_autograd.subclass_utils": {
        "requires_subclass_dispatch": Shape(
            "function",
            parts=(
                "args",
                "fw_metadata",
            ),
        ),
    },
    "torch._functorch._aot_autograd.utils": {
        "get_default_generator": Shape(
            "function",
            parts=("device",),
        ),
        "saved_tensors_hooks_are_inlineable": Shape(
            "function",
            parts=("hooks",),
        ),
        "top_saved_tensors_hooks": Shape("function"),
        "without_output_descs": Shape(
            "function",
            parts=("f",),
        ),
    },
    "torch._functorch.aot_autograd": {
        "create_aot_state": Shape(
            "function",
            parts=(
                "stack",
                "flat_fn",
                "fake_flat_args",
                "flat_args_descs",
                "aot_config",
                "fake_mode",
                "shape_env",
            ),
        ),
        "prepare_aot_module_simplified": Shape(
            "function",
            parts=(
                "mod",
                "args",
                "kwargs",
                "decompositions",
                "keep_inference_input_mutations",
                "ignore_shape_env",
                "flatten",
                "*",
                "force_non_lazy_backward_lowering=",
                "disable_functionalization=",
                "_record_nn_module_stack=",
                "_disable_torch_fn_metadata_mode=",
            ),
        ),
    },
    "torch._functorch.config": {
        "backward_pass_autocast": Shape("value"),
        "check_custom_op_aliasing": Shape("value"),
        "cse": Shape("value"),
        "debug_assert": Shape("value"),
        "disable_guess_zero_tangent_for_mutated_input_subclass": Shape("value"),
        "patch": Shape(
            "function",
            parts=(
                "arg1=",
                "arg2=",
                "**kwargs",
            ),
        ),
        "unlift_effect_tokens": Shape("value"),
        "view_replay_for_aliased_outputs": Shape("value"),
    },
    "torch._functorch.partitioners": {
        "min_cut_rematerialization_partition": Shape(
            "function",
            parts=(
                "joint_module",
                "_joint_inputs",
                "compiler=",
                "*",
                "num_fwd_outputs",
                "static_lifetime_input_indices=",
            ),
        ),
    },
    "torch._guards": {
        "CompileContext": Shape(
            "class",
            parts=("compile_id",),
            attributes=(
                "current_compile_id",
                "get",
                "try_get",
            ),
        ),
        "CompileContext.current_compile_id": Shape("function"),
        "CompileContext.try_get": Shape("function"),
        "CompileId": Shape(
            "dataclass",
            parts=(
                "frame_id",
                "frame_compile_id",
                "compiled_autograd_id",
            ),
        ),
        "Source": Shape(
            "dataclass",
            attributes=(
                "clone",
                "make_guard",
                "name",
            ),
        ),
        "TracingContext": Shape(
            "class",
            parts=("fake_mode",),
            attributes=(
                "fakify_first_call",
                "fw_metadata",
                "get",
                "output_strides",
                "params_flat",
                "patch",
                "traced_code",
                "try_get",
            ),
        ),
        "TracingContext.try_get": Shape("function"),
        "compile_context": Shape(
            "function",
            parts=("context",),
        ),
        "detect_fake_mode": Shape(
            "function",
            parts=("inputs=",),
        ),
        "tracing": Shape(
            "function",
            parts=("context",),
        ),
    },
    "torch._library.utils": {
        "is_builtin": Shape(
            "function",
            parts=("op",),
        ),
    },
    "torch._logging": {
        "trace_structured": Shape(
            "function",
            parts=(
                "name",
                "metadata_fn=",
                "*",
                "payload_fn=",
                "suppress_context=",
                "expect_trace_id=",
                "record_logging_overhead=",
                "compile_id=",
            ),
        ),
    },
    "torch._native.dsl_registry": {
        "dsl_registry": Shape("value"),
    },
    "torch._native.registry": {
        "_filter_state": Shape("value"),
        "deregister_op_overrides": Shape(
            "function",
            parts=(
                "*",
                "disable_dsl_names=",
                "disable_op_symbols=",
                "disable_dispatch_keys=",
            ),
        ),
        "reenable_op_overrides": Shape(
            "function",
            parts=(
                "*",
                "enable_dsl_names=",
                "enable_op_symbols=",
                "enable_dispatch_keys=",
            ),
        ),
    },
    "torch._ops": {
        "HigherOrderOperator": Shape(
            "class",
            parts=(
                "name",
                "*",
                "cacheable=",
                "supports_training_input_mutation=",
            ),
            attributes=("namespace",),
        ),
        "OpOverload": Shape(
            "class",
            parts=(
                "overloadpacket",
                "op",
                "op_dk",
                "schema",
                "tags",
            ),
            attributes=(
                "_op",
                "_schema",
                "is_view",
                "name",
                "namespace",
            ),
        ),
        "OpOverloadPacket": Shape(
            "class",
            parts=(
                "qualified_op_name",
                "op_name",
                "op",
                "overload_names",
            ),
            attributes=(
                "_op",
                "overloads",
            ),
        ),
    },
    "torch._prims_common": {
        "CUDARngStateHelper": Shape(
            "class",
            attributes=(
                "get_torch_state_as_tuple",
                "set_new_offset",
            ),
        ),
        "CUDARngStateHelper.get_torch_state_as_tuple": Shape(
            "function",
            parts=("fake_mode=",),
        ),
        "CUDARngStateHelper.set_new_offset": Shape(
            "function",
            parts=("relative_offset",),
        ),
    },
    "torch._subclasses": {
        "FakeTensor": Shape(
            "class",
            parts=(
                "fake_mode_or_elem=",
                "elem=",
                "device=",
                "constant=",
                "real_tensor=",
                "pytype=",
                "dispatch_keys=",
                "*",
                "fake_mode=",
                "fake_device=",
                "_fake_device=",
                "requires_grad=",
                "_is_param=",
                "**state",
            ),
            attributes=(
                "_base",
                "_cdata",
                "_version",
                "add",
                "as_strided_scatter",
                "clone",
                "detach",
                "device",
                "dtype",
                "element_size",
                "from_tensor",
                "grad",
                "grad_fn",
                "is_conj",
                "is_contiguous",
                "is_floating_point",
                "is_inference",
                "is_leaf",
                "is_neg",
                "layout",
                "log",
                "max",
                "name",
                "nbytes",
                "output_nr",
                "requires_grad",
                "requires_grad_",
                "shape",
                "size",
                "split",
                "storage_offset",
                "stride",
                "tolist",
                "untyped_storage",
                "values",
                "view",
                "where",
            ),
        ),
    },
    "torch._subclasses.fake_tensor": {
        "FakeTensorMode": Shape(
            "class",
            parts=(
                "*",
                "allow_fallback_kernels=",
                "allow_non_fake_inputs=",
                "shape_env=",
                "static_shapes=",
                "export=",
            ),
            attributes=(
                "cache",
                "from_tensor",
                "shape_env",
            ),
        ),
        "log": Shape("value"),
        "unset_fake_temporarily": Shape("function"),
    },
    "torch._vendor.packaging.version": {
        "Version": Shape(
            "class",
            parts=("version",),
            attributes=("_version",),
        ),
    },
    "torch.amp.autocast_mode": {
        "_enter_autocast": Shape(
            "function",
            parts=("*vals",),
        ),
        "_exit_autocast": Shape(
            "function",
            parts=("mode",),
        ),
    },
    "torch.compiler": {
        "_compile_session_context": Shape("function"),
    },
    "torch.fx.experimental._backward_state": {
        "BackwardState": Shape("class"),
    },
    "torch.utils._python_dispatch": {
        "_disable_current_modes": Shape("function"),
    },
    "torch.utils._pytree": {
        "keystr": Shape(
            "function",
            parts=("kp",),
        ),
        "tree_leaves_with_path": Shape(
            "function",
            parts=(
                "tree",
                "is_leaf=",
            ),
        ),
    },
    "torch.utils._sympy.printers": {
        "PythonPrinter": Shape(
            "class",
            parts=("settings=",),
        ),
    },
}
