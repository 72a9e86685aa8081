"""SwiGLU as gpt-oss has it in steps, clamped and sharpened, and what goes wrong in it.

gate, up (...,n), alpha and limit numbers; the meaning is that of `activation="clamped_swiglu"` of a
ModelConfig.
"""

from simdformer.learn.catalogue import mistakes
from simdformer.learn.program import Program

clamped_swiglu = Program(
    "clamped_swiglu",
    """
    inputs: g, u = array(gate), array(up)
    clamp: g, u = np.minimum(g, limit), np.clip(u, -limit, limit)
    sigmoid: share = 1 / (1 + np.exp(-alpha * g))
    gated: out = g * share * (u + 1)
    """,
)

mistakes(
    """
    clamped_swiglu.clamp (02 §7) > Clamp before anything else: gate to at most swiglu_limit, up to
        -swiglu_limit to swiglu_limit.

    not_clamped: gate and up are not clamped
        gpt-oss keeps its few very large activations within the limit.
        | pass
    gate_not_clamped: the gate is not clamped, only up is
        as above
        | u = np.clip(u, -limit, limit)
    up_not_clamped: up is not clamped, only the gate is
        as above
        | g = np.minimum(g, limit)
    gate_clamped_below: the gate is clamped on both sides
        up is clamped on both sides; of the gate only what is too large is cut.
        | g, u = np.clip(g, -limit, limit), np.clip(u, -limit, limit)

    clamped_swiglu.sigmoid (02 §7)

    alpha_forgotten: alpha is forgotten: this is the silu of the gate
        gpt-oss has gate * sigmoid(1.702 * gate), the quick form of gelu, where Llama has silu.
        > Multiply the gate by alpha inside of the sigmoid.
        | share = 1 / (1 + np.exp(-g))

    clamped_swiglu.gated (02 §7)

    one_forgotten: the gate multiplies up, not up + 1
        In gpt-oss an up of 0 lets the gate through, where Llama's SwiGLU would give 0.
        > Write (up + 1) * gate * sigmoid(alpha * gate).
        | out = g * share * u
    """
)
