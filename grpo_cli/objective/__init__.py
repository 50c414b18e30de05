"""Pure tensor functions: shaping, advantage, gate, KL, aggregation, loss.

The whole family is one sum (style of every module here):

    loss = sum_t w[n_t] * ell(logp_t, old_t, A[n_t])  +  beta * sum_t w[n_t] * k(logp_t, ref_t)

Dims: P prompts, G samples per prompt, N = P*G sequences, T completion tokens laid end to end.
Nothing here imports transformers, vllm or mlflow; torch is imported late, because the recipe schema
needs the settings classes of this package and must load without torch.
"""
