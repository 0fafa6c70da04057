"""Kernels are told by name; each name here was seen in a published trace or stands in its library's source."""

from __future__ import annotations

import pytest

from harness.trace.names import UNKNOWN, bare, named

SEEN = {
    "nvjet_sm100_tst_128x256_64x4_2x1_2cta_h_bz_coopA_TNT": ("GEMM", "cuBLASLt"),
    "Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64_MI16x16x1_SK3": ("GEMM", "hipBLASLt"),
    "Custom_Cijk_Ailk_Bljk_F8BS_shortname0_gfx950": ("GEMM", "hipBLASLt"),
    "sm90_xmma_gemm_bf16f32_bf16f32_f32_nt_n_tilesize128x128x64_execute_segment_k_off_kernel__5x_cublas": (
        "GEMM",
        "cuBLAS",
    ),
    "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn": ("GEMM", "cuBLAS"),
    "void cutlass::device_kernel<dpsk::grouped_gemm::cuda::m_grouped_fp8_ptp128c::GemmKernel>(X::Params)": (
        "grouped GEMM",
        "DeepSeek",
    ),
    "_ZN5aiter34fmha_fwd_hd128_bf16_causal_rtna_groupE": ("attention", "AITER"),
    "_ZN5aiter22fmha_bwd_hd128_odo_bf16E": ("attention", "AITER"),
    "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<T>(P)": ("attention", "FA2"),
    "void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::Main>>(P)": ("attention", "FA3"),
    "cudnn_generated_fort_native_sdpa_sm100_flash_bprop_f16_knob_4": ("attention", "cuDNN"),
    "attn_fwd": ("attention", "AOTriton"),
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": ("communication", "NCCL"),
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)": ("communication", "NCCL"),
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)": ("expert exchange", "DeepEP"),
    "void primus_turbo::deep_ep::internode::combine<false, 8>(int4*)": ("expert exchange", "DeepEP"),
    "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<T>(P)": ("norm", "any"),
    "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctorMaster<T>>(long)": ("optimizer", "multi-tensor"),
    "void multi_tensor_apply_kernel<TensorListMetadata<1>, L2NormFunctor<float>>(long)": (
        "gradient norm",
        "multi-tensor",
    ),
    "triton_poi_fused_mul_silu_3": ("activation", "any"),
    "triton_red_fused__to_copy_mean_mul_rsqrt_1": ("norm", "any"),
    "triton_poi_fused_add_7": ("elementwise", "Inductor"),
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, A>(int)": (
        "elementwise",
        "torch",
    ),
    "void transformer_engine::cast_transpose_optimized_kernel<T>(P)": ("cast", "TransformerEngine"),
    "_row_id_map_pass_1_kernel": ("permute", "MoE"),
    "Memcpy HtoD (Pinned -> Device)": ("copy", "runtime"),
    "__amd_rocclr_fillBufferAligned.kd": ("copy", "runtime"),
}


@pytest.mark.parametrize("name", SEEN)
def test_a_known_name(name: str) -> None:
    found = named(name)
    assert (found.kind, found.provider) == SEEN[name]


def test_the_main_kernels_of_attention_tell_layer_passes() -> None:
    ways = [named(name).way for name in SEEN if named(name).kind == "attention"]
    assert ways == ["forward", "", "backward", "forward", "backward", "forward"]


@pytest.mark.parametrize("name", ["my_kernel_v2", "foo::dispatch_table", "combined_scan", ""])
def test_an_unknown_name_stays_unknown(name: str) -> None:
    assert named(name).kind == UNKNOWN


def test_arguments_are_no_part_of_a_name_but_functors_are() -> None:
    assert bare("void f<g(int)>(h)") == "f<g(int)>"
    assert named("void run<X>(cublas_params)").kind == UNKNOWN
