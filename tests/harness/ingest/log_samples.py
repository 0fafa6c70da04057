"""A log of every dialect, with steps of 6 s but for the first: files of our own making, and lines of the others."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from asked import LOGS

_STEPS = 24
_SLOW = 60.0  # seconds of the first step
_STEADY = 6.0

#: Trainer → the line(s) of step ``{i}`` that took ``{s}`` seconds, ``{clock}`` after the start.
LINES: Mapping[str, str] = {
    "pytorch": "0: I [train.py:103] Batch {i} Loss: 7.1, Speed: {rate8:.2f} samples/sec, lr: 1e-4",
    "lingua": "step: {i}  acc: 0  loss:  2.1  grad: 1e-01  wps: 1.9e+04  iter:  {s:.2f}  data: 0.01  lr: 1e-4",
    "mindformers": "{{ Epoch:[1/2], step:[{i:5d}/ 6500], loss: 10.6, per_step_time: {ms:.0f}ms, lr: 1e-5, overflow cond: 0",
    "nanochat": "step {i:05d}/21400 (1.10%) | loss: 7.06 | dt: {ms:.2f}ms | tok/sec: 19,149 | mfu: 1.2",
    "nanochat_build": "step    {i} | loss: 10.890430 | lr 8.4e-07 | norm: 6 | dt: {ms:.2f}ms | tok/sec: 495.48",
    "nanochat_plain": "step {i}, loss: 10.890430, dt: {ms:.2f}ms, tok/sec: 49563.48",
    "llama_cookbook": "Training Epoch: 1/3, step {i}/388 completed (loss: 1.25): 1%|x| {i}/97 [{clock}<19:00, 6.01s/it]",
    "modalities": "step: {i} | train samples/s: {rate8:.2f} | train mfu: 0.04 | train loss last: 9.9 | ",
    "neuronx": "step {i} step_time {s:.1f}s throughput 4.0 seq/s loss 13.4 grad norm 1.97",
    "olmo_core": "[step={i}/900,epoch=1]\n    train/CE loss=2.1\n    throughput/device/TPS={rate8192:,.0f}",
    "olmo": "{stamp}\tnode-0:0\tolmo.train:990\tINFO\t[step={i}/900,epoch=0]\n    train/CrossEntropyLoss=2.1",
    "fms_fsdp": "step: {i}\nloss: 2.1\ncurrent step time: {s:.2f}\noverall step time: 5.5",
    "picotron": "Step: {i} | Loss: 8.5 | Tokens/s: 10.6K | Tokens/s/GPU: {rate8192k:.2f}K | Memory usage:   2.00GB",
    "torchtune": "Step {i} | loss:1.5 lr:2e-05 tokens_per_second_per_gpu:{rate8192:.2f} peak_memory_reserved:20.5",
    "torchtune_bar": " 1|{i}|Loss: 1.25: 1%|x| {i}/900 [{clock}<9:59, {s:.2f}s/it]",
    "fairseq": "2023-01-02 03:04:05 | INFO | train_inner | epoch 003:   85 / 282 loss=3.1, wps={rate8192:.1f}, ups=0.2, "
    "wpb=8192, bsz=16, num_updates={i}, lr=0.1, train_wall=48",
    "levanter": "Progress on:train {i}it/90it rate:1.0it/s remaining:2:00 elapsed:{clock} postfix:loss=2.5",
    "prime_rl": "Step {i} | Time: {s:.2f}s | Loss: 2.1 | LR: 1e-05 | Throughput: 90 tokens/s | MFU: 30.1% | "
    "Peak Mem.: 12 GiB",
    "prime_rl_minutes": "12:00:01 SUCCESS Step {i} |  1m {s:.0f}s | Loss 2.1 | Grad. Norm 0.5 | LR 1.00e-05 | Throughput 90 "
    "tokens/s | MFU 30.1% | Peak Mem. 12.0/80.0 GiB (15.0%)",
    "verl": "step:{i} - train/loss:1.9 - train/lr(1e-3):0.01 - train/time(s):{s:.1f}",
    "llm_c": "step {i:4d}/74 | loss    3.25 (+1.1z)| norm 1.48 (+nanz)| lr 3e-04 | {ms:.2f} ms | 29% bf16 MFU | 9186 tok/s",
    "llm_c_cpu": "step {i}: train loss 4.6 (took {ms:.1f} ms)",
    "nemo_bar": "Epoch 0:   1%|1  | {i}/77225 [{clock}<878:01:48, 41.35s/it, reduced_train_loss=3.09, global_step={i}.0]",
    "hf_elapsed": '{{"current_steps": {i}, "total_steps": 3235, "loss": 4.4, "elapsed_time": "{clock}"}}',
    "history": '{{"step": {i}, "step_time_s": {s:.3f}, "loss": 2.0}}',
    "wandb": '{{"_step": {i}, "_runtime": {sum:.2f}, "train/loss": 2.0}}',
    "gpt_neox": " samples/sec: {rate64:.3f} | iteration {i:8d}/   10000 | elapsed time per iteration (ms): {ms:.1f} | "
    "learning rate: 1.000E-05 | approx flops per GPU: 55.1TFLOPS | lm_loss: 1.1E+00 | loss scale: 1.0 |\n"
    "steps: {i} loss: 1.1064 iter time (s): {less:.3f} samples/sec: 147.356",
    "bridge_alone": "node/0 Step Time : {s:.2f}s GPU utilization: 663.5MODEL_TFLOP/s/GPU",
}
#: Trainer → what its log prints before the first step.
HEADS: Mapping[str, str] = {
    "gpt_neox": "NeoXArgs.configure_distributed_args() using world size: 1 and model-parallel size: 1\n"
    "-------------------- arguments --------------------\n"
    + "".join(
        f"  {name} {'.' * (32 - len(name))} {value}{'.' * (28 - len(value))}{said}\n"
        for name, value, said in (
            ("activation", "silu", "updated"),
            ("attention_config", "['flash', 'flash', 'flash', 'flash', 'flash', 'flash']", "updated"),
            ("batch_size", "8", "updated"),
            ("bf16", "{'enabled': True}", "updated"),
            ("checkpoint_activations", "True", "updated"),
            ("fp16", "{'enabled': False}", "updated"),
            ("global_num_gpus", "8", "updated"),
            ("hidden_size", "4096", "updated"),
            ("max_position_embeddings", "4096", "updated"),
            ("mlp_type", "llama", "updated"),
            ("model_parallel_size", "2", "updated"),
            ("no_weight_tying", "True", "updated"),
            ("norm", "rmsnorm", "updated"),
            ("num_attention_heads", "32", "updated"),
            ("num_layers", "32", "updated"),
            ("pos_emb", "rotary", "updated"),
            ("precision", "bfloat16", "updated"),
            ("seq_length", "4096", "updated"),
            ("train_batch_size", "64", "updated"),
            ("use_bias_in_attn_linear", "False", "updated"),
            ("zero_optimization", "{'stage': 1}", "updated"),
            ("checkpoint_num_layers", "1", "default"),
            ("moe_num_experts", "1", "default"),
            ("pipe_parallel_size", "0", "default"),
        )
    )
    + "---------------- end of arguments ----------------\n"
    "NeoXArgs.configure_distributed_args() using world size: 8 and model-parallel size: 2\n"
    " > padded vocab (size: 32016) with 0 dummy tokens (new size: 32016)\n"
}


def samples() -> dict[str, str]:
    """Name → text of a log."""
    files = {path.stem: path.read_text() for path in sorted(LOGS.glob("*.log"))}
    return files | {name: HEADS.get(name, "") + _log(line) for name, line in LINES.items()}


def _log(line: str) -> str:
    rows, spent, start = [], 0.0, datetime(2025, 12, 31, 23, 58)
    for i in range(1, _STEPS + 1):
        seconds = (_SLOW if i == 1 else _STEADY) + (i % 3 - 1) / 100
        spent += seconds
        rows.append(
            line.format(
                i=i, s=seconds, ms=1e3 * seconds, sum=spent, less=0.9 * seconds, rate64=64 / seconds, rate8=8 / seconds,
                rate8192=8192 / seconds, rate8192k=8.192 / seconds, clock=str(timedelta(seconds=int(spent))),
                stamp=(start + timedelta(seconds=spent)).isoformat(" ", "milliseconds"),
            )
        )  # fmt: skip
    return "\n".join(rows) + "\n"
