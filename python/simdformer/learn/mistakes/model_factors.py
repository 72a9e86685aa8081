"""Whole models: factors and caps that some have, and that are forgotten."""

from simdformer.learn.catalogue import Mistakes, instead

Mistakes(
    "scaling.multiply",
    see="02 §8",
    fix="Look into the config: embedding_multiplier, residual_multiplier, logits_scaling.",
)(
    """
    forgotten: a factor of the model is forgotten
        Some models multiply embeddings or what is added to the stream, or divide the logits.
    """,
    forgotten=instead(out=lambda s: s.run.array(s.x)),
)

Mistakes(
    "softcapping.cap",
    see="02 §9",
    fix="Apply final_logit_softcapping of the config to the logits.",
)(
    """
    forgotten: the cap of the logits is forgotten
        Gemma 2 bends large logits: cap * tanh(logits / cap).
    """,
    forgotten=instead(out=lambda s: s.run.array(s.x)),
)
