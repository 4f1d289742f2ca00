"""A model of foretell in EleutherAI's lm-evaluation-harness.

    pip install lm-eval
    python examples/lm_eval_model.py primer arc_easy lambada_openai

The first argument is any MODEL: a run, a path, a GGUF file. The harness downloads the data of its tasks.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from lm_eval.api.model import LM

import foretell
from foretell.evaluation.multiple_choice import ContinuationRow, continuation_rows, score_rows


class ForetellLM(LM):
    """model: a MODEL argument. options: keywords of `foretell.load`, such as quantize="int8"."""

    def __init__(self, model: str, **options: Any):
        super().__init__()
        self.model = foretell.load(model, **options)

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        """The log-probability of each continuation after its context, and whether greedy decoding writes it.

        A context that is too long loses its beginning. A context of several requests is read once.
        """
        pairs = [request.args for request in requests]
        rows = [continuation_rows(self.model, context, [answer], "a request")[0] for context, answer in pairs]
        return [(each.logprob, each.is_greedy) for each in score_rows(self.model, rows)]

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        """The log-probability of each text, of any length."""
        texts = [list(self.iter_windows(*request.args)) for request in requests]
        scored = iter(score_rows(self.model, [window for windows in texts for window in windows]))
        return [sum(next(scored).logprob for _ in windows) for windows in texts]

    def iter_windows(self, text: str) -> Iterator[ContinuationRow]:
        """Windows that predict every token once; the last one reads a full context.

        The start token predicts the first one, or else the end token; without both, the first one is not predicted.
        """
        tokenizer, limit = self.model.tokenizer, self.model.config.context_length
        ids = [*(tokenizer.start_ids or tokenizer.end_ids)[:1], *tokenizer.encode(text)]
        for predicted in range(1, len(ids), limit):
            end = min(predicted + limit, len(ids))
            begin = max(0, end - limit - 1)
            yield ContinuationRow(ids[begin:end], predicted - begin)

    def generate_until(self, requests: list[Any]) -> list[str]:
        """The continuation of each prompt; requests with equal options are generated together."""
        groups, answers = defaultdict[str, list[int]](list), dict[int, str]()
        for index, request in enumerate(requests):
            groups[repr(request.args[1])].append(index)
        for indices in groups.values():
            prompts, options = [requests[index].args[0] for index in indices], requests[indices[0]].args[1]
            completions = foretell.generate(self.model, prompts, slide=True, **keywords_of(**options))
            answers |= {index: each.text for index, each in zip(indices, completions, strict=True)}
        return [answers[index] for index in range(len(requests))]


def keywords_of(
    until: str | Sequence[str] = (), max_gen_toks: int = 256, do_sample: bool = False, **sampling: Any
) -> dict[str, Any]:
    """The harness's options as keywords of `foretell.generate`, which refuses unknown ones. Greedy by default."""
    sampling = {"temperature": 1.0, "top_p": 1.0, **sampling} if do_sample else {"temperature": 0}
    return {"max_tokens": max_gen_toks, "stop": [until] if isinstance(until, str) else list(until), **sampling}


if __name__ == "__main__":
    from lm_eval import simple_evaluate
    from lm_eval.utils import make_table

    print(make_table(simple_evaluate(ForetellLM(sys.argv[1]), tasks=sys.argv[2:])))
