"""The baseline that every projector must beat: the same MFU for every run, whatever its configuration.

Step time = model FLOP / (gpus · peak · MFU). The FLOP count is 6·N per token for the N active parameters that are
multiplied (the embedding look-up is not) plus causal attention, 6·L·n·(d_qk + d_v)·S/2 per token (PaLM,
arXiv:2204.02311, appendix B, with the causal half). Uncalibrated, MFU is 0.40: the middle of the 38–43 % that *The
Llama 3 Herd of Models* (arXiv:2407.21783, table 4) reports for bf16 on H100 — published. Calibration then amounts to
one fitted MFU per GPU and precision.
"""

from __future__ import annotations

from harness.contracts.runs import MeasuredRun, Prediction
from harness.predictors.protocol import Guarded
from projector.dataclass import dataclass
from projector.errors import Unsupported
from projector.workload.model import Model

PUBLISHED_MFU = 0.40


@dataclass(frozen=True)
class ConstantMfu(Guarded):
    name: str = "constant-mfu"
    mfu: float = PUBLISHED_MFU

    def project(self, run: MeasuredRun) -> Prediction:
        from projector.hardware import catalogue

        work, gpu = run.workload, catalogue.gpu(run.gpu)
        try:
            peak = gpu.peak_of(work.recipe.precision)
        except KeyError as error:
            raise Unsupported(str(error.args[0])) from None
        flops = flops_per_token(work.model, work.recipe.seq_length) * work.tokens_per_step
        return Prediction(status="ok", step_seconds=flops / (run.gpus * peak * self.mfu), measured_share=0.0)


def flops_per_token(model: Model, seq_length: int) -> float:
    """Returns the training FLOP (nothing recomputed) of one token in a causal sequence of ``seq_length``."""
    from projector.workload import parameters

    count = parameters.count(model)
    lookup = count.embedding if model.untie_embeddings_and_output_weights else 0
    heads = model.num_attention_heads * (model.head_dim_qk + model.head_dim_v)
    return 6.0 * (count.active - lookup) + 3.0 * model.num_layers * heads * seq_length
