"""torch's tests that say nothing about `ccl`, each with the reason.

A test that `ccl` fails may be here for as long as it takes to mend it: its reason then starts with BUG, and
test_torch_suite fails.
"""

from __future__ import annotations

__all__ = ["BUG", "EXCLUDED"]

BUG = "bug:"

BROKEN = "fails on gloo too, for a reason of its own:"
SPARSE = "ccl moves dense tensors, and says so of any other"
STREAMS = "waits for streams or events of a GPU"
SYNC_BN = "torch's SyncBatchNorm takes tensors on an accelerator only"
TO_ITSELF = "sends to itself, which only NCCL does"

EXCLUDED = {
    "test_DistributedDataParallel": f"{BROKEN} a DDP module that was saved forgets that its graph is static",
    "test_DistributedDataParallel_SyncBatchNorm": SYNC_BN,
    "test_DistributedDataParallel_SyncBatchNorm_2D_Input": SYNC_BN,
    "test_DistributedDataParallel_SyncBatchNorm_Channels_Last": SYNC_BN,
    "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_Running_Value": SYNC_BN,
    "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_gradient": SYNC_BN,
    "test_DistributedDataParallel_SyncBatchNorm_No_Affine": SYNC_BN,
    "test_DistributedDataParallel_SyncBatchNorm_Single_Input_Per_Process": SYNC_BN,
    "test_DistributedDataParallel_SyncBatchNorm_half": SYNC_BN,
    "test_DistributedDataParallel_non_default_stream": STREAMS,
    "test_SyncBatchNorm_process_group": f"{SYNC_BN}; and needs torchvision",
    "test_batch_isend_irecv_nccl": TO_ITSELF,
    "test_batch_isend_irecv_self_nccl": TO_ITSELF,
    "test_ddp_apply_optim_in_backward": STREAMS,
    "test_ddp_apply_optim_in_backward_grad_as_bucket_view_false": STREAMS,
    "test_ddp_apply_optim_in_backward_ignored_params": STREAMS,
    "test_ddp_device": "DDP moves inputs to the GPU it was given, and this looks whether it did",
    "test_ddp_has_finalized": f"{BROKEN} torch skips it, see pytorch issue 102751",
    "test_ddp_hook_pickling_powerSGD": f"{BROKEN} it loads its state as if it were weights only",
    "test_ddp_inference": SYNC_BN,
    "test_ddp_logging_data_cpu": "torch's C++ calls every backend that is not its own `custom`",
    "test_ddp_logging_data_gpu": "reads the devices that DDP logs",
    "test_ddp_native_mixed_precision_grad_as_bucket_view_no_set_grad_none": STREAMS,
    "test_ddp_native_mixed_precision_grad_as_bucket_view_set_grad_to_none": STREAMS,
    "test_ddp_native_mixed_precision_no_grad_as_bucket_view_no_set_grad_none": STREAMS,
    "test_ddp_native_mixed_precision_no_grad_as_bucket_view_set_grad_to_none": STREAMS,
    "test_ddp_profiling_execution_trace": "reads what NCCL, and it alone, writes into a trace",
    "test_ddp_sync_bn_training_vs_eval": SYNC_BN,
    "test_ddp_uneven_inputs": "sized for a GPU: convolutions that a CPU needs many minutes for",
    "test_ddp_uneven_inputs_stop_iteration_sync_bn": SYNC_BN,
    "test_nccl_high_priority_stream": "makes a ProcessGroupNCCL",
    "test_sparse_all_reduce_sum": SPARSE,
    "test_sparse_all_reduce_sum_cuda": SPARSE,
    "test_sync_bn_logged": SYNC_BN,
}
