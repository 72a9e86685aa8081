"""The mixture of experts of a layer in steps, one for each name of a trace, and what goes wrong in
it, in whole models as in `nn.MixtureOfExperts`.

The variables are those of model.py, with k experts a token: mlp_router (B,L,X), mlp_experts (B,L,k)
whole numbers, mlp_gate (B,L,k,I), mlp_expert_out (B,L,k,E), mlp_shared_gate (B,L,I). The steps of a
layer that are not here, mlp_gate to mlp_act, are those of any layer, once for each of k.
"""

from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes.activations import sigmoid
from simdformer.learn.mistakes.mixture import largest, over_all, over_chosen
from simdformer.learn.mistakes.model import activated, added, project
from simdformer.learn.mistakes.softmax import softmax
from simdformer.learn.program import Program

__all__ = ["experts"]

experts = Program(
    "experts",
    """
    mlp_router: mlp_router = project(s, mlp_norm, "router", index)
    mlp_router_probs: mlp_router_probs = run(softmax, x=mlp_router).out
    mlp_experts: mlp_experts = largest(s, mlp_router, num_experts_per_tok)
    mlp_expert_weights: mlp_expert_weights = over_chosen(s) if normalize else over_all(s)
    mlp_expert_out: mlp_expert_out = project(s, mlp_act, "down", index)
    mlp_shared_gate: mlp_shared_gate = project(s, mlp_norm, "shared.gate", index)
    mlp_shared_up: mlp_shared_up = project(s, mlp_norm, "shared.up", index)
    mlp_shared_act: mlp_shared_act = activated(s, mlp_shared_gate, mlp_shared_up)
    mlp_shared_router: mlp_shared_router = project(s, mlp_norm, "shared.router", index)
    mlp_shared_weight: mlp_shared_weight = sigmoid(mlp_shared_router)
    mlp_shared_down: mlp_shared_down = project(s, mlp_shared_act, "shared.down", index)
    mlp_shared_out:
        mlp_shared_out = array(mlp_shared_down)
        if config.shared_router:
            mlp_shared_out = mlp_shared_out * array(mlp_shared_weight)
    mlp_routed: mlp_routed = (mlp_expert_weights[..., None] * mlp_expert_out).sum(axis=-2)
    mlp_out:
        mixed = array(mlp_routed)
        if config.shared_intermediate_size:
            mixed = mixed + array(mlp_shared_out)
        mlp_out = added(s, mixed, "mlp_out_norm")
    """,
    calls=(activated, added, largest, over_all, over_chosen, project, sigmoid, softmax),
)


mistakes(
    """
    mixture (02 §7), experts (02 §7) > Take argsort(-logits)[..., :k], or what torch.topk gives; k
        is num_experts_per_tok.

    smallest_chosen: the experts with the smallest logits are asked
        argsort sorts upwards: its first entries are the smallest.
        mlp_experts | mlp_experts = largest(s, -mlp_router, num_experts_per_tok)
    one_chosen: only the likeliest expert is asked
        An argmax gives one expert; this layer asks num_experts_per_tok of them.
        mlp_experts | mlp_experts = largest(s, mlp_router, 1)
    one_more_chosen: one expert too many is asked
        k is off by one, or the shared expert is counted among those that the router chooses.
        mlp_experts | mlp_experts = largest(s, mlp_router, num_experts_per_tok + 1)
    one_fewer_chosen (unless one_chosen): one expert too few is asked
        as above
        mlp_experts | mlp_experts = largest(s, mlp_router, num_experts_per_tok - 1)
    all_chosen (unless one_more_chosen): all experts are asked
        The softmax over all logits is used without choosing: a dense mixture.
        mlp_experts | mlp_experts = largest(s, mlp_router, mlp_router.shape[-1])

    mixture (02 §7), experts (02 §7) > Apply the softmax over the experts: over the chosen logits
        where normalize (norm_topk_prob) is true, else over all of them, and then choose.

    normalised_otherwise: the weights sum to one over all experts, or over the chosen ones
        Mixtral and gpt-oss divide by the sum over the chosen experts; Qwen2-MoE keeps the softmax
        over all. A config says it as norm_topk_prob.
        mlp_expert_weights | mlp_expert_weights = over_all(s) if normalize else over_chosen(s)
    softmax_twice: the softmax is applied twice, before the choice and after it
        The softmax over all is chosen from, and what is chosen goes through a softmax again.
        mlp_expert_weights | mlp_expert_weights = run(softmax, x=over_all(s)).out
    logits_as_weights: the logits of the router are used as weights, without a softmax
        What topk gives is used as it is.
        mlp_expert_weights | mlp_expert_weights = np.take_along_axis(mlp_router, mlp_experts, -1)
    sigmoid_as_weights: a sigmoid of the logits weighs the experts, not a softmax
        DeepSeek-V3 and Llama 4 score experts so; Mixtral, Qwen and gpt-oss do not.
        mlp_expert_weights | chosen = np.take_along_axis(mlp_router, mlp_experts, -1)
        mlp_expert_weights | mlp_expert_weights = 1 / (1 + np.exp(-chosen))

    mixture (02 §7), experts (02 §7) > Sort both or neither: a weight belongs to the expert at the
        same place.

    sorted_without_weights: the experts are sorted by number, and their weights are not
        The ids are sorted to group the tokens by expert, and the weights stay where they were.
        mlp_expert_weights | ...; mlp_experts = np.sort(mlp_experts, axis=-1)
    weights_reversed: the weights are in the reverse order of the experts
        argsort gives the likeliest last, topk gives it first.
        mlp_expert_weights | ...; mlp_expert_weights = mlp_expert_weights[..., ::-1]

    mixture (02 §7), experts (02 §7) > Multiply what each expert writes with its weight before the
        sum.

    weights_forgotten: what the experts write is added up without their weights
        The router decides who is asked, and what it thinks of them is then not used.
        mlp_routed | mlp_routed = mlp_expert_out.sum(axis=-2)
    mean_of_experts: the mean over the chosen experts is taken, without their weights
        The outputs are stacked and averaged.
        mlp_routed | mlp_routed = mlp_expert_out.mean(axis=-2)

    experts (02 §7)

    router_of_unnormed: the router reads the stream, not its norm
        The norm is computed and then not used.
        > The router reads what the experts read: the norm of the stream after attention.
        mlp_router | mlp_router = project(s, resid_mid, "router", index)
    weights_sorted_otherwise: the weights are in the order of the logits, the experts in another
        The ids are sorted to group the tokens by expert, and the weights stay where they were.
        > Sort both or neither: a weight belongs to the expert at the same place.
        mlp_expert_weights | mlp_experts = largest(s, mlp_router, num_experts_per_tok); ...
    shared_forgotten: the shared expert is forgotten
        The MLP beside the experts, which every token goes through, is left out.
        > Add what the shared expert writes to the sum over the chosen ones.
        mlp_out | mlp_out = added(s, array(mlp_routed), "mlp_out_norm")
    shared_gate_forgotten: the gate of the shared expert is forgotten
        In Qwen2-MoE a sigmoid of one logit says for each token how much the shared expert counts.
        > Multiply it with sigmoid(x @ shared_expert_gate.T) before it is added.
        mlp_shared_out | mlp_shared_out = array(mlp_shared_down)
    shared_gate_without_sigmoid: the gate of the shared expert is its logit, without a sigmoid
        as above
        > Multiply it with sigmoid(x @ shared_expert_gate.T) before it is added.
        mlp_shared_weight | mlp_shared_weight = array(mlp_shared_router)
    """,
    calls=(softmax,),
)
