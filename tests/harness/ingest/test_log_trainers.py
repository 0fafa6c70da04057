"""What single trainers print that others do not: other years, other forks, excerpts, and files of several runs."""

import json
from pathlib import Path

import pytest
from asked import LOGS, put, refusal, says
from log_records import records, step
from log_samples import samples
from tabled import tabled

from harness.evidence.ingest.command import ingest, is_table
from harness.evidence.ingest.context import Context, read_context
from harness.evidence.ingest.dialects import read_log, read_records_of_log
from harness.evidence.ingest.logs.logged import AFTER_EVALUATION


def dump(**arguments: object) -> str:
    lines = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in arguments.items()]
    return "\n".join(["-------------------- arguments --------------------", *lines, "---- end of arguments ----", ""])


def lines(count: int, ms: float = 500.0, batch: str = "") -> str:
    return "".join(
        f" iteration {i:8d}/   1000 | elapsed time per iteration (ms): {ms:.1f} | learning rate 1.5E-04 |{batch} "
        f"lm loss 7.3E+00 | loss scale 16384.0 |\n"
        for i in range(10, 10 * count + 1, 10)
    )


EARLY = {"num_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "max_position_embeddings": 1024}
EARLY |= {"seq_length": 1024, "batch_size": 4, "model_parallel_size": 2, "world_size": 8, "fp16": True}


def test_megatron_of_2020_states_the_batch_of_one_rank(tmp_path: Path) -> None:
    run = read_log(put(tmp_path / "a.log", dump(**EARLY, vocab_size=50257) + lines(12))).runs[0]
    assert (run.recipe.tp, run.recipe.micro_batch_size, run.recipe.global_batch_size) == (2, 4, 16)
    assert (run.gpus, run.measured.step_seconds) == (8, 0.5)


def test_deepspeeds_pipeline_of_2021_counts_its_batch_by_accumulation(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    report = "".join(f"op{i} ............... [NO] ....... [OKAY]\n" for i in range(20))
    torn = {"pipe_parallel_size": "2[OKAY]", "gas": "32......"}  # ranks print into one another's lines
    path.write_text(report + dump(**EARLY, vocab_size=50257, **torn, cpu_optimizer=True) + lines(12))
    read = read_log(path).runs[0]
    assert (read.recipe.tp, read.recipe.pp, read.recipe.micro_batch_size) == (2, 2, 4)
    assert (read.recipe.global_batch_size, read.recipe.optimizer_cpu_offload) == (4 * 32 * 2, True)
    assert "op1" not in str(read.assumed)


DEEPSPEED = {"num_layers": 28, "hidden_size": 3584, "num_attention_heads": 28, "ffn_hidden_size": 18944}
DEEPSPEED |= {"seq_length": 2048, "micro_batch_size": 1, "global_batch_size": 16, "world_size": 16, "swiglu": True}
DEEPSPEED |= {"tensor_model_parallel_size": 4, "num_experts": "[1]", "normalization": "rmsnorm", "bf16": True}
DEEPSPEED |= {"num_key_value_heads": 4, "add_bias_linear": False, "vocab_size": 151936, "zero_stage": 1}


def test_megatron_deepspeeds_own_words(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    rows = lines(12).replace("| lm loss", "| samples per second: 32.0 | lm loss")
    run = read_log(put(path, dump(**DEEPSPEED) + rows)).runs[0]
    assert (run.model.num_query_groups, run.model.normalization, run.model.moe) == (4, "RMSNorm", None)


def test_bridge_with_its_step_times_alone(tmp_path: Path) -> None:
    text = "".join(
        f"node/0 Step Time : {9 + i % 3 / 100:.2f}s GPU utilization: 663.5MODEL_TFLOP/s/GPU\n" for i in range(12)
    )
    dialect, (record,) = records(tmp_path, text)
    assert (dialect, record.steps, step(record)) == ("megatron-bridge", 12, pytest.approx(9.01))


@pytest.mark.parametrize("position", [True, False])
def test_nemo_counts_on_after_step_1000(tmp_path: Path, position: bool) -> None:
    rows = []
    for i in range(900, 1200):
        number = f"{i:.1f}" if i < 1000 else f"{i:.3g}".replace("e+03", "e+3")
        bar = f"|███| {i}/2000 [1:00:00<1:00:00, " if position else f"iteration {i}/2000 | "
        end = "]" if position else " | lr: 1e-4"
        rows.append(f"Epoch 0: {bar}reduced_train_loss=2.1, global_step={number}, train_step_timing in s=6.000{end}")
    _, (record,) = records(tmp_path, "\n".join(rows) + "\n")
    assert record.steps == 300
    assert list(record.iteration[:3]) == [900, 901, 902]


def test_the_bar_of_an_evaluation_is_not_the_trainings(tmp_path: Path) -> None:
    text = (
        (LOGS / "hf_trainer.log")
        .read_text()
        .replace("{'eval_loss'", " 90%|####| 90/100 [00:25<00:03,  3.6it/s]\n{'eval_loss'")
    )
    _, (record,) = records(tmp_path, text)
    assert (record.steps, step(record)) == (20, 6.0)


def test_the_bar_of_a_data_set_is_not_the_trainings(tmp_path: Path) -> None:
    """Without the head (it is printed at another level of logging) the bar beside the losses is the training's."""
    lines = [
        line for line in (LOGS / "hf_trainer.log").read_text().splitlines() if "=" not in line and "***" not in line
    ]
    tokens = [f" {i}%|##| {i * 100}/10000 [{i // 60:02d}:{i % 60:02d}<00:10, 100.0it/s]" for i in range(0, 100, 5)]
    _, (record,) = records(tmp_path, "\n".join([*tokens, *lines]) + "\n")
    assert (record.steps, step(record)) == (20, 6.0)
    _, (record,) = records(tmp_path, "\n".join([*tokens, "{'loss'", "***** Running training *****"]) + "\n")
    assert record.steps == 0


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("completed step: 1, seconds: 11.720, Frames/s/device: 7.255, loss: 1.541\n" * 3, "a diffusion model"),
        (lines(9).replace("loss scale", "sop loss: 6.9E-01 | loss scale"), "an encoder of text"),
        (
            "Some weights of BertForSequenceClassification were not initialized\n{'train_steps_per_second': 1}\n",
            "BertFor",
        ),
        ("{'loss': 0.6, 'rewards/chosen': 0.1, 'epoch': 0.1}\n{'train_steps_per_second': 1}\n", "pairs of answers"),
        ("{'reward': 0.6, 'completions/mean_length': 99.0}\n{'train_steps_per_second': 1}\n", "generation of answers"),
        ("chosen: -31.9375, rejected: -33.96875, loss: 0.665\n{'train_steps_per_second': 1}\n", "pairs of answers"),
        (
            "|E2E latency=7.99s |Generate time=5.26s (65.81%)\n[timer.py:215:stop] global_step=1, "
            "RunningAvgSamplesPerSec=7, CurrSamplesPerSec=8.0\n",
            "generation of answers",
        ),
        (
            "| 3/62 [02:59<58:44, 0.02it/s, reduced_train_loss=6.9, chosen_rewards=-0.8, global_step=1.0]\n",
            "pairs of answers",
        ),
        (
            "chosen_last_scores (higher is better) : 2.8, acc (higher is better) : 0.49\n[timer.py:215:stop] global_step=1, "
            "RunningAvgSamplesPerSec=7, CurrSamplesPerSec=8.0\n",
            "pairs of answers",
        ),
        ("mmengine - INFO - Iter(train) [ 50/2000]  lr: 1  time: 0.29  loss: 2.5  decode.loss_ce: 2.5 \n", "of images"),
    ],
)
def test_what_trains_something_else_says_so(tmp_path: Path, text: str, what: str) -> None:
    (problem,) = refusal(read_log, put(tmp_path / "a.log", text)).problems
    assert (what in str(problem), problem.key) == (True, "training")


def test_litgpt_where_only_the_last_micro_batch_is_printed(tmp_path: Path) -> None:
    row = "Epoch 1 | iter {} step {} | loss train: 1.6, val: n/a | iter time: 375.00 ms (step) remaining time: 1 day\n"
    _, (record,) = records(tmp_path, "".join(row.format(16 * i, i) for i in range(1, 21)))
    assert step(record) == pytest.approx(6.0)
    assert record.notes == ["times are of one micro-batch of 16 a step: the others are not printed"]


@pytest.mark.parametrize("first", [0, 1])
def test_litgpt_of_2023_sums_the_micro_batches_of_a_step(tmp_path: Path, first: int) -> None:
    """TinyLlama counts iterations from zero."""
    row = "iter {} step {}: loss 9.5, iter time: {:.2f}ms{}\n"
    rows = (
        row.format(i + first, (i + 1) // 4, 100 * (1 + i % 4), " (optimizer.step)" * (i % 4 == 3)) for i in range(64)
    )
    _, (record,) = records(tmp_path, "".join(rows))
    assert (set(record.value), set(record.loss), record.notes) == ({1.0}, {9.5}, [])


def test_paddles_interval_of_unknown_length_is_no_step(tmp_path: Path) -> None:
    row = "- loss: 1.0, global_step: {}, interval_runtime: {}, interval_steps_per_second: {}, epoch: 1\n"
    rows = [row.format(10, 90.0, 0.1111), *(row.format(10 * i, 60.0, 0.1667) for i in range(2, 12))]
    _, (record,) = records(tmp_path, "".join(rows))
    assert (record.steps, step(record)) == (11, pytest.approx(6.0))


def test_the_first_step_alone_is_not_the_speed(tmp_path: Path) -> None:
    _, (record,) = records(
        tmp_path, " iteration 1/ 10 | elapsed time per iteration (ms): 90000.0 | global batch size: 8 |\n"
    )
    assert (record.steps, step(record)) == (1, None)
    assert "warm-up, not its speed" in record.notes[0]
    _, (record,) = records(
        tmp_path, " iteration 50/ 99 | elapsed time per iteration (ms): 9000.0 | global batch size: 8 |\n"
    )
    assert step(record) == 9.0


@pytest.mark.parametrize("optimizer", [True, False])
def test_a_lone_profiler_step_without_an_optimizer_is_no_step(tmp_path: Path, optimizer: bool) -> None:
    events = [{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 112202}]
    kernels = ["gemm", "multi_tensor_apply_kernel"] if optimizer else ["gemm"]
    events += [{"ph": "X", "cat": "kernel", "name": name, "ts": 5 + i, "dur": 100} for i, name in enumerate(kernels)]
    _, (record,) = records(tmp_path, json.dumps({"traceEvents": events}), "a.json")
    assert (record.steps, bool(record.notes)) == ((1, False) if optimizer else (0, True))


LOGGED = (
    '{{"current_steps": {step}, "total_steps": 3235, "loss": 4.4, "eval_loss": {eval}, "elapsed_time": "{time}"}}\n'
)


def test_a_trainer_log_of_llama_factory_is_read_by_its_clock(tmp_path: Path) -> None:
    clock = ["23:59:00", *(f"1 day, 0:0{minute}:00" for minute in range(8))]
    text = "".join(LOGGED.format(step=10 * i, eval="null", time=time) for i, time in enumerate(clock, start=1))
    path = put(tmp_path / "trainer_log.jsonl", text)
    dialect, (record,) = read_records_of_log(path)
    assert (dialect, record.facts["framework"], step(record), record.steps) == ("history", "hf-trainer", 6.0, 8)
    (row,) = ingest([path]).rows  # by its lines, not by the table that its name promises
    assert row.read[0].startswith("step 6 s")
    assert ingest([put(path, text.replace('"loss"', '"reward": null, "loss"'))]).rows[0].read == row.read
    path.write_text(text.replace('"loss"', '"reward": 0.25, "loss"'))
    refusal(ingest, [path], match="generation of answers")


def test_a_bar_of_nemo_without_timing_is_read_by_its_clock_not_by_its_mean(tmp_path: Path) -> None:
    bar = "Epoch 0:   1%|1  | {n}/77225 [{clock}<878:01:48, 41.35s/it, reduced_train_loss=3.09, global_step={n}.0]\n"
    times = [9 * 3600 + 30 * i for i in range(12)]
    text = "".join(
        bar.format(n=790 + i, clock=f"{t // 3600}:{t % 3600 // 60:02}:{t % 60:02}") for i, t in enumerate(times)
    )
    dialect, (record,) = records(tmp_path, text)
    assert (dialect, step(record)) == ("nemo", 30.0)


def test_llm_c_says_its_batch_in_tokens(tmp_path: Path) -> None:
    table = {"micro batch size B": 4, "sequence length T": 1024, "total batch size": 16384, "num_processes": 2}
    head = "".join(f"| {name:<21} | {value:<50} |\n" for name, value in table.items())
    line = "step {i:4d}/74 | loss 3.2 (+nanz)| norm 1.48 (+nanz)| lr 3e-04 | {ms:.2f} ms | 29% bf16 MFU | 91886 tok/s\n"
    text = head + "".join(line.format(i=i, ms=900.0 if i == 1 else 44.5) for i in range(1, 20))
    dialect, (record,) = records(tmp_path, text)
    assert (dialect, step(record)) == ("llm.c", pytest.approx(0.0445))
    assert (record.stated.values["global_batch_size"], record.stated.values["world_size"]) == (16, 2)


def test_nanochat_says_its_batch_and_its_ranks(tmp_path: Path) -> None:
    head = (
        "2025-10-16 17:12:02,081 - nanochat.common - INFO - Distributed world size: 8\n"
        "Tokens / micro-batch / rank: 32 x 2048 = 65,536\nTokens / micro-batch: 524,288\n"
        "Total batch size 1,048,576 => gradient accumulation steps: 2\n"
    )
    line = "step {i:05d}/21400 (0.01%) | loss: 9.4 | lrm: 1.00 | dt: 500.00ms | tok/sec: 2,097,152 | mfu: 48.35\n"
    path = put(tmp_path / "a.log", head + "".join(line.format(i=i) for i in range(12)))
    (row,) = read_log(path, incomplete=True).rows
    says(row.read, "1,048,576 tokens a step", "2.6214e+05 tokens/s/GPU")
    assert [name for name, _ in row.missing] == ["model", "gpu"]


def test_tokens_consumed_over_the_steps_done_are_the_batch_of_one(tmp_path: Path) -> None:
    """Of a run that goes on from step 100 in steps of 96 sequences of 2048 tokens."""
    line = (
        "step: {0} | train samples/s: 16.0 | train mfu: 0.04 | train loss last: 9.9 | consumed tokens: {1}.0 | grad\n"
    )
    text = "".join(line.format(i, i * 96 * 2048) for i in range(100, 160, 5))
    recipe = put(tmp_path / "recipe.yaml", "{recipe: {seq_length: 2048}}")
    (run,) = read_log(put(tmp_path / "a.log", text), read_context(recipe), incomplete=True).runs
    assert (run.switches["global_batch_size"], run.measured.step_seconds) == (96, 6.0)


def test_a_batch_in_tokens_is_one_in_sequences_of_the_length_that_is_said(tmp_path: Path) -> None:
    path, recipe = tmp_path / "a.log", tmp_path / "recipe.yaml"
    line = "step {i:4d} | loss: 9.4 | lr 8.3e-07 | norm: 15.3 | dt: 330.50ms | tok/sec: 1586349.00\n"
    path.write_text("total desired batch size: 524288\n" + "".join(line.format(i=i) for i in range(12)))
    for length, batch in ((1024, 512), (2048, 256)):
        recipe.write_text(f"{{model: gpt2, recipe: {{micro_batch_size: 16, seq_length: {length}}}}}")
        (log,) = read_log(path, read_context(recipe, gpu="h100", gpus=8)).logs
        assert log.run.recipe.global_batch_size == batch
        assert log.run.measured.tgs == pytest.approx(524288 / 0.3305 / 8, rel=1e-3)
    recipe.write_text("{model: gpt2, recipe: {micro_batch_size: 16, seq_length: 1000}}")
    (row,) = read_log(path, read_context(recipe, gpu="h100", gpus=8), incomplete=True).rows
    assert [name for name, _ in row.missing] == ["global_batch_size"]


def test_lines_of_a_trainer_that_have_no_time_say_why(tmp_path: Path) -> None:
    """Its other lines make it DeepSpeed's, its rate is the mean since the start."""
    path = tmp_path / "a.log"
    line = "[2022-03-11 02:06:58,985] [INFO] [timer.py:189:stop] 0/40, SamplesPerSec=83.4, MemAllocated=0.26GB\n"
    path.write_text("[INFO] DeepSpeed info: version=0.5.9\n" + line * 9)
    refusal(read_log, path, match="mean since the start")


def test_nanogpt_behind_a_clock_says_that_its_loss_broke(tmp_path: Path) -> None:
    text = "".join(f"2023-03-22 09:30:39 iter {i}: loss {loss}, time 1000.00ms, mfu 15.34%\n" for i, loss in
                   [*((i, "3.9") for i in range(10)), *((i, "nan") for i in range(10, 20))])  # fmt: skip
    text += "2023-03-22 09:32:32 step 20: train loss 4.0390, val loss 4.0427\niter 20: loss nan, time 35000.00ms\n"
    _, (record,) = records(tmp_path, text)
    assert step(record) == 1.0
    assert record.flags.tolist() == [*(0,) * 20, AFTER_EVALUATION]
    assert "the loss is no number from step 10 on" in record.notes[0]


@pytest.mark.parametrize("ranks", [True, False])
def test_internevo_counts_tokens_and_its_layout_says_the_ranks(ranks: bool, tmp_path: Path) -> None:
    layout = "data parallel size: 4, pipeline parallel size: 1, tensor parallel size: 4\n" if ranks else ""
    line = "tflops=41.9 step={i} loss=11.5 tgs (tokens/gpu/second)=1024.0 tgs/tgs_avg=338.62 num_consumed_tokens={n}\n"
    text = layout + "".join(line.format(i=i, n=65536 * (i + 1)) for i in range(20))
    _, (record,) = records(tmp_path, text)
    assert (record.basis, step(record)) == (("seconds", 4.0) if ranks else ("tokens", pytest.approx(1 / 1024)))


@pytest.mark.parametrize(("line", "reason"), tabled("readers", "known_lines_without_a_step_time_are_refused_for_that"))
def test_known_lines_without_a_step_time_are_refused_for_that(line: str, reason: str, tmp_path: Path) -> None:
    refusal(records, tmp_path, line + "\n", match=reason)
    path = put(tmp_path / "a.json", line + "\n")
    assert is_table(path) is not any(mark in line for mark in ("DLLL ", "log_history"))  # whatever a file is called


def test_gpt_neox_says_its_model_and_its_layout_in_words_of_its_own(tmp_path: Path) -> None:
    """A llama of 2023 whose launcher prints a world of one; DeepSpeed's own times leave the data out."""
    (made,) = read_log(put(tmp_path / "a.log", samples()["gpt_neox"]), incomplete=True).logs
    run = made.run
    assert (made.dialect, run.gpus, run.stack.framework) == ("gpt-neox", 8, "megatron-deepspeed")
    assert run.measured.step_seconds == pytest.approx(6.0)
    assert run.model is not None
    assert run.recipe is not None
    model, recipe = run.model, run.recipe
    assert (model.num_layers, model.ffn_hidden_size, model.gated_linear_unit, model.vocab_size) == (
        32, 11008, True, 32016,
    )  # fmt: skip
    assert (model.normalization, model.add_bias_linear, recipe.precision) == ("RMSNorm", False, "bf16")
    assert (recipe.tp, recipe.pp, recipe.micro_batch_size, recipe.global_batch_size) == (2, 1, 8, 64)
    assert (recipe.recompute_granularity, recipe.data_parallel_sharding) == ("full", "optim")


@pytest.mark.parametrize(
    ("said", "other"), tabled("readers", "gpt_neox_with_an_architecture_that_is_not_read_asks_for_it")
)
def test_gpt_neox_with_an_architecture_that_is_not_read_asks_for_it(said: str, other: str, tmp_path: Path) -> None:
    text = samples()["gpt_neox"]
    assert said in text
    (row,) = read_log(put(tmp_path / "a.log", text.replace(said, other)), incomplete=True).rows
    assert tuple(name for name, _ in row.missing) == ("model", "gpu")
    assert "262,144 tokens a step" in row.read


def test_a_log_and_the_table_that_was_made_of_it_are_one_run(tmp_path: Path) -> None:
    log, table = tmp_path / "a.log", tmp_path / "runs.yaml"
    log.write_text(samples()["megatron_plain"])
    ingest([log], out=table, said=Context(gpu="h100_sxm"))
    for paths in ([log, table], [table, log]):
        made = ingest(paths, said=Context(gpu="h100_sxm"))
        assert [row.where for row in made.rows] == ["runs.yaml"]
        assert not made.problems
    renamed = table.read_text().replace("id: a", "id: another", 1)
    assert renamed != table.read_text()
    table.write_text(renamed)
    assert "a run that" in str(ingest([log, table], said=Context(gpu="h100_sxm")).problems[0])


def test_a_place_in_the_code_is_no_timer(tmp_path: Path) -> None:
    rows = (
        f"[2024-04-21 02:45:40,723] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | fwd: 3000.5 | bwd: 6000.5\n"
        f"[timer.py:260:stop] epoch=0/micro_step={i}/global_step={i}, RunningAvgSamplesPerSec=7.1, CurrSamplesPerSec=8.0\n"
        for i in range(1, 12)
    )
    _, (record,) = records(tmp_path, "".join(rows))
    assert set(record.timers) == {"fwd", "bwd"}


@pytest.mark.parametrize(
    "total", ["Data Parallel GPUs = 3 | Total batch size (2 x 4 x 3) = 24", "Total batch size = 24 | Total steps = 60"]
)
def test_unsloths_banner_states_the_batch(tmp_path: Path, total: str) -> None:
    """Releases of 2025 and of 2024."""
    steps = "Gradient accumulation steps = 4" if "GPUs" in total else "Gradient Accumulation steps = 4"
    bars = "".join(
        f"{{'loss': 1.5}}\n 1%|x| {i}/60 [0:{i * 5 // 60:02}:{i * 5 % 60:02}<10:00, 5.01s/it]\n" for i in range(40)
    )
    text = f"O^O/ \\_/ \\    Batch size per device = 2 | {steps}\n\\        /    {total}\n{bars}"
    (run,) = read_log(put(tmp_path / "a.log", text), incomplete=True).runs
    assert (run.gpus, run.switches["global_batch_size"], run.measured.step_seconds) == (3, 24, 5.0)


@pytest.mark.parametrize("bar", [True, False])
def test_a_trainer_on_deepspeed_counts_by_its_own_bar_where_it_prints_one(tmp_path: Path, bar: bool) -> None:
    """DeepSpeed's timer leaves the data out, and knows no batch but that of the trainer's head."""
    head = "Gradient Accumulation steps = 2\nTotal train batch size (w. parallel, distributed & accumulation) = 128\n"
    timer = "[timer.py:260:stop] epoch=0/micro_step={0}/global_step={0}, RunningAvgSamplesPerSec=9, CurrSamplesPerSec=16.0\n"
    bars = [f"{i}/90 [{i * 3 // 60:02}:{i * 3 % 60:02}<10:00, 3.01s/it]\n" if bar else "" for i in range(1, 60)]
    text = "".join(f"{{'loss': 0.8, 'epoch': 0.1}}\n{timer.format(i)}{text}" for i, text in enumerate(bars, start=1))
    dialect, (record,) = records(tmp_path, text)
    assert (dialect, record.basis, step(record)) == (
        ("hf-trainer", "seconds", 3.0) if bar else ("megatron-deepspeed", "samples", 1 / 16)
    )
    (run,) = read_log(put(tmp_path / "b.log", head + text), incomplete=True).runs
    assert (run.measured.step_seconds, run.switches["global_batch_size"]) == (3.0 if bar else 128 / 16, 128)
