"""The numbered listings of the formal algorithms, each line with the textbook's code for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from foretell.textbook import attention, embedding, inference, training, transformer, vectors
from foretell.typesetting.document import Paragraph, Part, Table


@dataclass(frozen=True)
class Listing:
    """A listing in the lecture's convention (a row per token), next to code in the paper's (a column per token).

    A line is (its number in the lecture, the step, fragments of the code; … stands for code that is left out).
    """

    title: str
    lines: tuple[tuple[str, str, str], ...]
    functions: tuple[Callable[..., Any], ...]

    def parts(self) -> list[Part]:
        """The listing to show."""
        names = ", ".join(dict.fromkeys(function.__module__.rpartition(".")[2] + ".py" for function in self.functions))
        return [
            Paragraph(f"{self.title}, line by line:"),
            Table(("", "listing", f"textbook/{names}"), self.lines, True),
        ]

    def missing_code(self) -> list[str]:
        """The fragments that are not in the functions' source; the code shown is the code that runs if it is empty."""
        source = squeezed("".join(inspect.getsource(function) for function in self.functions))
        fragments = [part for _, _, code in self.lines for part in code.split("…")]
        return [fragment for fragment in fragments if squeezed(fragment) not in source]


def squeezed(code: str) -> str:
    """The code without any space, so that line breaks do not matter."""
    return "".join(code.split())


SINGLE_QUERY = Listing(
    "Basic single-query attention",
    (
        ("2", "q ← e W_q + b_q", "q = W.W_q @ e + W.b_q"),
        ("3", "for t in 1 … T:", "for e_t in context"),
        ("4", "  k_t ← e_t W_k + b_k", "[W.W_k @ e_t + W.b_k …]"),
        ("5", "  α_t ← exp(q·k_t/√d) / Σ_u …", "softmax(associations(…) / math.sqrt(len(q)))"),
        ("6", "  v_t ← e_t W_v + b_v", "[W.W_v @ e_t + W.b_v …]"),
        ("7", "return Σ_t α_t v_t", "np.sum([alpha_t * v_t for …)], axis=0)"),
    ),
    (attention.single_query_attention,),
)
MASKED_ATTENTION = Listing(
    "Masked self-attention",
    (
        ("2", "Q ← X W_q + b_q", "project(W.W_q, W.b_q, X)"),
        ("3", "K ← X W_k + b_k", "project(W.W_k, W.b_k, Z)"),
        ("4", "V ← X W_v + b_v", "V = project(W.W_v, W.b_v, Z)"),
        ("5", "S ← Q Kᵀ / √d", "associations(Q[:, t], K) … / math.sqrt(…)"),
        ("6", "for all tz, tx:", ""),
        ("7", "  if not mask[tx, tz]: S ← -∞", "np.where(mask, S, -np.inf)"),
        ("8", "return softmax(S) V", "V @ attention_weights(X, Z, W, mask)"),
    ),
    (attention.attention, attention.attention_weights, vectors.masked_softmax),
)
D_TRANSFORMER = Listing(
    "DTransformer, next to the form of GPT-2",
    (
        ("3", "e_t ← W_e[x[t]] + W_p[t]", "token_embedding(v, W_e) + …(t, W_p)"),
        ("4", "X ← [e_1, …, e_l]", "X = embed(x, theta.W_e, theta.W_p)"),
        ("5", "for l = 1 … L:", "for layer in theta.layers:"),
        ("6", "  X ← LayerNorm(X)", "layer_norm_per_column(X, layer.gamma_1, …)"),
        ("7", "  X ← X + MHAttentionMask(X)", "X = X + masked_self_attention(…, layer)"),
        ("8", "  X ← LayerNorm(X)", "layer_norm_per_column(X, layer.gamma_2, …)"),
        ("9", "  X ← X + MLP(X)", "X = X + mlp(…, layer)"),
        ("10", "  X ← LayerNorm(X)", "layer_norm_per_column(X, theta.gamma, …)"),
        ("11", "return softmax(X W_u)", "return unembedding_per_column(X, theta.W_u)"),
    ),
    (transformer.d_transformer_gpt2, embedding.embed),
)
D_TRAINING = Listing(
    "DTraining",
    (
        ("2", "for i in 1 … N_epochs:", "for _ in range(N_epochs):"),
        ("3", "  for n in 1 … N_data:", "for x in sequences:"),
        ("5", "    P ← DTransformer(x_n | θ)", "P = unembedding_per_column(…, theta.W_u)"),
        ("6", "    loss ← -Σ log P[t, x_n[t+1]]", "-conditional_log_probability(P, x)"),
        ("7", "    θ ← θ - η ∇loss", "weight - eta * slope"),
        ("8", "return θ", "return theta"),
    ),
    (training.d_training, training.sgd_step, training.loss_and_gradient),
)
D_INFERENCE = Listing(
    "DInference",
    (
        ("3", "for i in 1 … l_gen:", "for _ in range(l_gen):"),
        ("4", "  P ← DTransformer(x | θ)", "model(sequence)"),
        ("5", "  p ← P[l + i - 1]", "p = model(sequence)[:, -1]"),
        ("6", "  sample y from q ∝ p^(1/τ)", "q = tempered(p, tau) … rng.choice(len(q), p=q)"),
        ("7", "  x ← [x, y]", "sequence.append(…)"),
        ("8", "return x[l + 1 : l + l_gen]", "return sequence[len(x) :]"),
    ),
    (inference.d_inference,),
)
LISTINGS = (SINGLE_QUERY, MASKED_ATTENTION, D_TRANSFORMER, D_TRAINING, D_INFERENCE)
