"""The exercises of training: every mistake of the catalogue in them is named, and no other."""

import pytest

import simdformer as sf
from simdformer.learn.catalogue import CATALOGUE
from test_exercises_text import with_mistake
from test_learn_commands import narrow

LINE = "labels[row, : len(text) - 1] = np.where(answer[1:], text[1:], -100)"
END = "return ids, labels"
CLIP = 'clip_gradients(list(gradients.values()), options["max_norm"])'
ADAPTER = "x @ weight.T + alpha / len(a) * (x @ a.T @ b.T)"
PADDED = """labels[:, :-1], labels[:, -1] = ids[:, 1:], -100
    mask = np.zeros(shape, bool)
    for row, one in enumerate(answers):
        mask[row, : len(one)] = one
    labels[~mask] = -100
    return ids, labels"""

# The exercise, and by the name of the mistake what its solution says and what a learner writes.
WRONG = {
    "batch_and_labels": {
        "batch.padded_on_the_left": (
            "ids[row, : len(text)] = text",
            "ids[row, -len(text) :] = text\n        at = shape[1] - len(text)",
            "labels[row, : len(text) - 1]",
            "labels[row, at:-1]",
        ),
        "batch.padded_with_0": ("np.full(shape, pad_id)", "np.zeros(shape, int)"),
        "batch.padded_with_ignored": ("np.full(shape, pad_id)", "np.full(shape, -100)"),
        "batch.cut_to_the_shortest": (
            END,
            (
                "short = min(map(len, texts))\n    labels[:, short - 1] = -100\n"
                "    return ids[:, :short], labels[:, :short]"
            ),
        ),
        "batch.padding_learned": (
            END,
            (
                "for row, text in enumerate(texts):\n"
                "        labels[row, len(text) - 1 : -1] = pad_id\n    return ids, labels"
            ),
        ),
        "batch.labels_not_shifted": (
            LINE,
            "labels[row, : len(text)] = np.where(answer, text, -100)",
        ),
        "batch.last_not_shifted": (
            "np.where(answer[1:], text[1:], -100)",
            "np.where(answer, text, -100)[:-1]",
        ),
        "batch.labels_shifted_back": (
            LINE,
            "labels[row, 1 : len(text) + 1] = np.where(answer, text, -100)[: shape[1] - 1]",
        ),
        "batch.labels_shifted_twice": (
            END,
            "labels[:, :-1] = labels[:, 1:].copy()\n    return ids, labels",
        ),
        "batch.mask_not_shifted": ("np.where(answer[1:]", "np.where(answer[:-1]"),
        "batch.mask_of_padded_not_shifted": (END, PADDED),
        "batch.mask_alone_shifted": ("text[1:], -100", "text[:-1], -100"),
        "batch.labels_wrap_around": (
            LINE,
            "labels[row, : len(text)] = np.roll(np.where(answer, text, -100), -1)",
        ),
        "batch.batch_wraps_around": (
            LINE,
            "labels[row, : len(text)] = np.where(answer, text, -100)",
            END,
            "return ids, np.roll(labels, -1, axis=1)",
        ),
        "batch.labels_one_shorter": (END, "return ids, labels[:, :-1]"),
        "batch.questions_learned": ("np.where(answer[1:], text[1:], -100)", "text[1:]"),
        "batch.everything_learned": (END, "labels[:, :-1] = ids[:, 1:]\n    return ids, labels"),
        "batch.questions_alone_learned": ("text[1:], -100", "-100, text[1:]"),
        "batch.end_not_learned": (END, "return ids, np.where(labels == pad_id, -100, labels)"),
        "batch.end_left_out": (
            "np.where(answer[1:]",
            "np.where(np.logical_and(answer[1:], [*answer[2:], False])",
        ),
        "batch.first_left_out": (
            "np.where(answer[1:]",
            "np.where(np.logical_and(answer[1:], [False, *answer[1:-1]])",
        ),
        "batch.ignored_as_padding": ("-100", "pad_id"),
        "batch.ignored_as_0": ("-100", "0"),
        "batch.ignored_as_minus_1": ("-100", "-1"),
    },
    "training_step": {
        "step.gradients_of_ids": ("(weights, ids, labels)", "(weights, ids, ids)"),
        "step.loss_after_the_step": (
            "return loss,",
            "loss, _ = loss_and_gradients(new_weights, ids, labels)\n    return loss,",
        ),
        "step.gradient_turned": (
            "clip_gradients(list(gradients.values())",
            "clip_gradients([-g for g in gradients.values()]",
        ),
        "step.not_clipped_here": (CLIP, "list(gradients.values())"),
        "step.each_clipped_alone": (
            CLIP,
            '[clip_gradients([g], options["max_norm"])[0] for g in gradients.values()]',
        ),
        "step.clipped_by_number": (
            CLIP,
            '[np.clip(g, -options["max_norm"], options["max_norm"]) for g in gradients.values()]',
        ),
        "step.always_scaled": (
            CLIP,
            (
                "list(gradients.values())\n    norm = sum((g * g).sum() for g in clipped) ** 0.5\n"
                '    clipped = [g * options["max_norm"] / norm for g in clipped]'
            ),
        ),
        "step.matrices_clipped_alone": (
            CLIP,
            CLIP + "\n    matrices = [g for g in gradients.values() if g.ndim > 1]\n"
            '    some = iter(clip_gradients(matrices, options["max_norm"]))\n'
            "    clipped = [next(some) if g.ndim > 1 else g for g in gradients.values()]",
        ),
        "step.schedule_one_ahead": ("cosine_lr(step - 1", "cosine_lr(step"),
        "step.no_schedule": ("cosine_lr(step - 1, *schedule)", 'options["lr"]'),
        "step.adamw_from_1_again": ("*moments, step,", "*moments, 1,"),
        "step.vectors_decayed": ("weight.ndim == 1", "False"),
        "step.nothing_decayed": ("weight.ndim == 1", "True"),
        "step.moments_not_kept": (
            "return loss, new_weights, new_m, new_v",
            "return loss, new_weights, m, v",
        ),
        "step.moments_from_0": ("moments = m[name], v[name]", "moments = 0 * m[name], 0 * v[name]"),
        "step.weights_not_kept": ("return loss, new_weights", "return loss, weights"),
        "step.moments_exchanged": ("new_m, new_v\n", "new_v, new_m\n"),
    },
    "lora_linear": {
        f"lora.{name}": (ADAPTER, wrong)
        for name, wrong in {
            "alpha_not_divided": "x @ weight.T + alpha * (x @ a.T @ b.T)",
            "no_alpha": "x @ weight.T + (x @ a.T @ b.T)",
            "rank_over_alpha": "x @ weight.T + len(a) / alpha * (x @ a.T @ b.T)",
            "divided_by_root": "x @ weight.T + alpha / len(a) ** 0.5 * (x @ a.T @ b.T)",
            "only_divided": "x @ weight.T + (x @ a.T @ b.T) / len(a)",
            "divided_by_inputs": "x @ weight.T + alpha / a.shape[-1] * (x @ a.T @ b.T)",
            "divided_by_outputs": "x @ weight.T + alpha / len(b) * (x @ a.T @ b.T)",
            "adapter_left_out": "x @ weight.T",
            "scale_squared": "x @ weight.T + (alpha / len(a)) ** 2 * (x @ (b @ a).T)",
            "adapter_subtracted": "x @ (weight - alpha / len(a) * (b @ a)).T",
            "adapter_alone": "x @ (alpha / len(a) * (b @ a)).T",
            "all_scaled": "x @ (alpha / len(a) * (weight + b @ a)).T",
            "averaged_with_weight": "x @ (weight + alpha / len(a) * (b @ a)).T / 2",
        }.items()
    },
    "lora_backward": {
        "lora_backward.alpha_not_divided": ("alpha / len(a)", "alpha"),
        "lora_backward.rank_over_alpha": ("alpha / len(a)", "len(a) / alpha"),
        "lora_backward.divided_by_root": ("alpha / len(a)", "alpha / len(a) ** 0.5"),
        "lora_backward.only_divided": ("alpha / len(a)", "1 / len(a)"),
        "lora_backward.divided_by_inputs": ("alpha / len(a)", "alpha / a.shape[1]"),
        "lora_backward.divided_by_outputs": ("alpha / len(a)", "alpha / len(b)"),
        "lora_backward.b_without_scale": (", of_b\n", ", of_b / scale\n"),
        "lora_backward.b_scaled_twice": (", of_b\n", ", of_b * scale\n"),
        "lora_backward.b_batch_kept": (
            ", of_b\n",
            ", scale * (grad.swapaxes(-1, -2) if grad.ndim > 2 else grad.T) @ (x @ a.T)\n",
        ),
        "lora_backward.b_averaged": (", of_b\n", ", of_b * x.shape[-1] / x.size\n"),
        "lora_backward.b_of_last_sequence": (
            ", of_b\n",
            ", of_b if grad.ndim < 3 else scale * grad[-1].T @ (x[-1] @ a.T)\n",
        ),
        "lora_backward.a_without_scale": (", of_a, of_b\n", ", of_a / scale, of_b\n"),
        "lora_backward.a_scaled_twice": (", of_a, of_b\n", ", of_a * scale, of_b\n"),
        "lora_backward.a_batch_kept": (
            ", of_a, of_b\n",
            ", scale * (grad @ b).swapaxes(-1, -2) @ x, of_b\n",
        ),
        "lora_backward.a_averaged": (", of_a, of_b\n", ", of_a * x.shape[-1] / x.size, of_b\n"),
        "lora_backward.a_of_last_sequence": (
            ", of_a, of_b\n",
            ", of_a if grad.ndim < 3 else scale * (grad[-1] @ b).T @ x[-1], of_b\n",
        ),
        "lora_backward.x_of_weight_alone": ("grad @ weight + through_a", "grad @ weight"),
        "lora_backward.x_of_adapter_alone": ("grad @ weight + through_a", "through_a"),
        "lora_backward.x_without_scale": (
            "grad @ weight + through_a",
            "grad @ weight + through_a / scale",
        ),
        "lora_backward.x_all_scaled": ("grad @ weight +", "scale * grad @ weight +"),
        "lora_backward.x_scaled_twice": (
            "grad @ weight + through_a",
            "grad @ weight + scale * through_a",
        ),
    },
}
ALL = [(name, mistake) for name, mistakes in WRONG.items() for mistake in mistakes]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "mistake"), ALL)
def test_each_mistake_is_named_and_no_other(name, mistake):
    outcome = sf.exercises.check(with_mistake(name, *WRONG[name][mistake]))[name]
    assert outcome.status == "wrong", outcome
    assert {one.name for one in outcome.report.diagnosis} == {mistake}, outcome
    assert narrow(repr(outcome))


def test_every_mistake_is_made_here():
    programs = {mistake.partition(".")[0] for _, mistake in ALL}
    known = {name for name in CATALOGUE.variations if name.partition(".")[0] in programs}
    assert known == {mistake for _, mistake in ALL}
