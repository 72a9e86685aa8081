"""Optimizers on dicts of arrays: AdamW, Muon, clipping by the global norm, the cosine schedule.

    optimizer = sf.optim.AdamW(parameters, lr=3e-4)            # dict of name -> float32 array
    norm = sf.optim.clip_grad_norm_(gradients, 1.0)            # dict of name -> gradient
    optimizer.step(gradients, lr=sf.optim.cosine_lr(step, lr=3e-4, warmup=100, total=2000))

Functions whose names end in an underscore change their arguments in place, as PyTorch's do.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from simdformer import _core
from simdformer.arguments import as_array, is_real, read_whole
from simdformer.functional import linear
from simdformer.types import Array, ArrayLike

__all__ = ["AdamW", "Muon", "adamw_", "by_ndim", "clip_grad_norm_", "cosine_lr", "muon_"]
__dir__ = __all__.copy  # what dir() and completion show


def adamw_(
    weight: Array,
    gradient: ArrayLike,
    exp_avg: Array,
    exp_avg_sq: Array,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.1,
    scale: float = 1.0,
) -> None:
    """One step of AdamW on one array, in place. Loshchilov and Hutter 2019, arXiv:1711.05101.

    With g = scale · gradient:   weight -= lr weight_decay weight
        exp_avg = β₁ exp_avg + (1 - β₁) g     exp_avg_sq = β₂ exp_avg_sq + (1 - β₂) g²
        weight -= lr (exp_avg / (1 - β₁ˢᵗᵉᵖ)) / (sqrt(exp_avg_sq / (1 - β₂ˢᵗᵉᵖ)) + eps)

    Parameters
    ----------
    weight, exp_avg, exp_avg_sq : float32 or float64 arrays of one shape, in C order; changed
    gradient : array of that shape and dtype
    step : int
        Counts from 1.
    scale : float
        Of the gradient: what `clip_grad_norm_` would have multiplied it by.

    The order is PyTorch's: the decay first, eps outside the root and after the correction.

    TypeError: dtypes. ValueError: shapes, strides, overlapping arrays, numbers out of range.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> weight, m, v = np.ones(2), np.zeros(2), np.zeros(2)
    >>> sf.optim.adamw_(weight, np.array([1.0, -4.0]), m, v, step=1, lr=0.1, weight_decay=0.0)
    >>> weight.round(6)
    array([0.9, 1.1])
    """
    options = {"lr": lr, "eps": eps, "weight_decay": weight_decay, "scale": scale}
    check_options("adamw_", options, betas)
    if isinstance(step, bool) or not isinstance(step, int | np.integer) or step < 1:
        raise ValueError(f"adamw_: step is {step!r}, needs a whole number >= 1; the first is 1")
    corrections = (1 - betas[0] ** step, 1 - betas[1] ** step)
    _core.adamw(
        weight, gradient, exp_avg, exp_avg_sq, lr, *betas, eps, weight_decay, *corrections, scale
    )


def check_options(function: str, options: Mapping[str, float], betas: tuple[float, float]) -> None:
    for name, value in options.items():
        if not is_real(value, 0):
            raise ValueError(f"{function}: {name} is {value!r}, needs a finite number >= 0")
    if np.shape(betas) != (2,) or not all(is_real(beta, 0) and beta < 1 for beta in betas):
        raise ValueError(f"{function}: betas is {betas!r}, needs two numbers from 0 to below 1")


# Keller Jordan 2024, kellerjordan.github.io/posts/muon: a step keeps singular vectors and brings
# singular values from (0, 1] to about 1, quickly rather than exactly (0.7 to 1.2 after five).
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonal(x: Array, steps: int) -> Array:
    """About U Vᵀ for x = U S Vᵀ, by steps of X <- a X + (b A + c A²) X with A = X Xᵀ."""
    a, b, c = NEWTON_SCHULZ
    short = x if x.shape[0] <= x.shape[1] else x.T
    short = short / (math.sqrt(_core.sum_of_squares(short)) + 1e-7)  # no singular value above 1
    for _ in range(steps):
        square = linear(short, short)
        short = a * short + linear(b * square + c * linear(square, square), short.T)
    return short if x.shape[0] <= x.shape[1] else short.T


def muon_(
    weight: Array,
    gradient: ArrayLike,
    momentum_buffer: Array,
    *,
    lr: float,
    momentum: float = 0.95,
    weight_decay: float = 0.1,
    steps: int = 5,
    scale: float = 1.0,
) -> None:
    """One step of Muon on one matrix, in place.

    With g = scale · gradient:   momentum_buffer = momentum · momentum_buffer + g
        u = g + momentum · momentum_buffer                (Nesterov's)
        weight -= lr weight_decay weight
        weight -= lr sqrt(max(1, rows / columns)) orthogonal(u)

    orthogonal(u) is about U Vᵀ where u = U S Vᵀ: every direction moves by the same length. It comes
    from `steps` steps of a Newton-Schulz iteration, which takes products of matrices only.

    Parameters
    ----------
    weight, momentum_buffer : (rows, columns) float32 or float64; changed
    gradient : (rows, columns) of that dtype
    steps : int
        Of the iteration.
    scale : float
        Of the gradient: what `clip_grad_norm_` would have multiplied it by.

    For hidden matrices. Embeddings, the lm_head, norms and biases are AdamW's.

    TypeError: dtypes. ValueError: shapes, not a matrix, numbers out of range.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> weight, buffer = np.zeros((2, 2)), np.zeros((2, 2))
    >>> sf.optim.muon_(weight, np.diag([3.0, -0.5]), buffer, lr=1.0, weight_decay=0.0, steps=9)
    >>> np.sign(weight.round(1))                     # one length for both, whatever the gradient's
    array([[-1.,  0.],
           [ 0.,  1.]])
    """
    function = "muon_"
    options = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "scale": scale}
    check_options(function, options, (0.0, 0.0))
    read_whole(function, "steps", steps)
    given = as_array(function, "gradient", gradient)
    for name, array in (("weight", weight), ("momentum_buffer", momentum_buffer)):
        if not isinstance(array, np.ndarray) or array.dtype not in (np.float32, np.float64):
            found = getattr(array, "dtype", type(array).__name__)
            raise TypeError(f"{function}: {name} has dtype {found}, needs float32 or float64")
        if array.ndim != 2 or array.shape != given.shape or not array.flags.writeable:
            raise ValueError(
                f"{function}: {name} has shape {array.shape} beside a gradient of {given.shape}, "
                "needs writable matrices of one shape; give vectors to AdamW"
            )
        if array.dtype != given.dtype:
            raise TypeError(
                f"{function}: gradient has dtype {given.dtype}, needs {array.dtype}, that of {name}"
            )
    if np.shares_memory(weight, momentum_buffer) or np.shares_memory(given, momentum_buffer):
        raise ValueError(f"{function}: momentum_buffer shares memory, needs memory of its own")
    if weight.size == 0:
        return
    own = given.dtype.type
    g = given * own(scale)
    np.add(momentum_buffer * own(momentum), g, out=momentum_buffer)
    update = orthogonal(g + own(momentum) * momentum_buffer, steps)
    length = lr * math.sqrt(max(1.0, weight.shape[0] / weight.shape[1]))
    weight *= own(1 - lr * weight_decay)
    weight -= own(length) * update


def by_ndim(name: str, weight: Array) -> bool:
    """Whether an array is left out of the weight decay: vectors are (norms, biases)."""
    return weight.ndim < 2


class Optimizer:
    """Parameters by name, their moments, and the number of steps: what AdamW and Muon share."""

    moments: tuple[str, ...] = ()

    def __init__(
        self, parameters: Mapping[str, Array], no_decay: Callable[[str, Array], bool]
    ) -> None:
        self.parameters = dict(parameters)
        self.steps = 0
        for moment in self.moments:
            zeros = {name: np.zeros_like(w, order="C") for name, w in self.parameters.items()}
            setattr(self, moment, zeros)
        self._decays = {name: not no_decay(name, w) for name, w in self.parameters.items()}

    def begin(self, gradients: Mapping[str, ArrayLike]) -> None:
        """Counts a step, for whose gradients there are parameters."""
        for name in gradients:
            if name not in self.parameters:
                raise KeyError(
                    f"{type(self).__name__}: gradients has {name!r}, needs names of the parameters"
                )
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        """{"steps": int, moment: {name: array}}, copies: runs go on from it with the same bits."""
        kept = {moment: getattr(self, moment) for moment in self.moments}
        copies = {moment: {name: m.copy() for name, m in of.items()} for moment, of in kept.items()}
        return {"steps": self.steps, **copies}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes what `state_dict` gave. ValueError: names or shapes differ."""
        for moment in self.moments:
            own, given = getattr(self, moment), state.get(moment, {})
            shapes = {name: m.shape for name, m in own.items()}
            if shapes != {name: np.shape(m) for name, m in given.items()}:
                raise ValueError(
                    f"{type(self).__name__}: {moment} has other names or shapes than the "
                    "parameters, needs the state of the same model"
                )
        for moment in self.moments:
            for name, array in state[moment].items():
                getattr(self, moment)[name][...] = array
        self.steps = int(state["steps"])


class AdamW(Optimizer):
    """AdamW over a dict of arrays, whose moments it keeps.

    Parameters
    ----------
    parameters : dict of name -> float32 array in C order
        Changed in place by `step`.
    lr, betas, eps, weight_decay : float
        As in `adamw_`.
    no_decay : function of (name, array) -> bool
        Which arrays have no weight decay; `by_ndim`: those with fewer than two axes.

    `.state_dict()` is what a checkpoint needs to go on with the same bits, `.load_state_dict()`
    takes it.

    TypeError, ValueError: as `adamw_`.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> parameters = {"w": np.ones((2, 2), np.float32)}
    >>> optimizer = sf.optim.AdamW(parameters, lr=0.1, weight_decay=0.0)
    >>> optimizer.step({"w": np.ones((2, 2), np.float32)})
    >>> parameters["w"].round(4)
    array([[0.9, 0.9],
           [0.9, 0.9]], dtype=float32)
    """

    moments = ("exp_avg", "exp_avg_sq")
    exp_avg: dict[str, Array]
    exp_avg_sq: dict[str, Array]

    def __init__(
        self,
        parameters: Mapping[str, Array],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        no_decay: Callable[[str, Array], bool] = by_ndim,
    ) -> None:
        check_options("AdamW", {"lr": lr, "eps": eps, "weight_decay": weight_decay}, betas)
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        super().__init__(parameters, no_decay)

    def step(
        self, gradients: Mapping[str, ArrayLike], *, lr: float | None = None, scale: float = 1.0
    ) -> None:
        """One step with these gradients, by the parameters' names; names without one stay.

        lr: of this step, where it is not the optimizer's. scale multiplies all gradients: that of
        clipping, which then takes no pass of its own.

        KeyError: a gradient of an unknown name.
        """
        self.begin(gradients)
        for name, gradient in gradients.items():
            adamw_(
                self.parameters[name], gradient, self.exp_avg[name], self.exp_avg_sq[name],
                step=self.steps, lr=self.lr if lr is None else lr, betas=self.betas, eps=self.eps,
                weight_decay=self.weight_decay if self._decays[name] else 0.0, scale=scale,
            )  # fmt: skip


class Muon(Optimizer):
    """Muon over a dict of hidden matrices, whose momentum it keeps. The rest is AdamW's.

    Parameters
    ----------
    parameters : dict of name -> (rows, columns) float32 array
        Changed in place by `step`.
    lr, momentum, weight_decay, steps
        As in `muon_`.

    `.state_dict()` and `.load_state_dict()` are those of AdamW.

    TypeError, ValueError: as `muon_`.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> parameters = {"w": np.ones((2, 3), np.float32)}
    >>> optimizer = sf.optim.Muon(parameters, lr=0.02)
    >>> optimizer.step({"w": np.ones((2, 3), np.float32)})
    >>> bool((parameters["w"] < 1).all())
    True
    """

    moments = ("momentum_buffer",)
    momentum_buffer: dict[str, Array]

    def __init__(
        self,
        parameters: Mapping[str, Array],
        *,
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        steps: int = 5,
    ) -> None:
        options = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        check_options("Muon", options, (0.0, 0.0))
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.iterations = read_whole("Muon", "steps", steps)
        super().__init__(parameters, by_ndim)

    def step(
        self, gradients: Mapping[str, ArrayLike], *, lr: float | None = None, scale: float = 1.0
    ) -> None:
        """One step, as AdamW's. KeyError: a gradient of an unknown name."""
        self.begin(gradients)
        for name, gradient in gradients.items():
            muon_(
                self.parameters[name], gradient, self.momentum_buffer[name],
                lr=self.lr if lr is None else lr, momentum=self.momentum,
                weight_decay=self.weight_decay, steps=self.iterations, scale=scale,
            )  # fmt: skip


def clip_grad_norm_(
    gradients: Mapping[str, Array] | Iterable[Array], max_norm: float, *, apply: bool = True
) -> float:
    """The norm of all gradients together; where it is above max_norm, they are scaled down to it.

    As torch.nn.utils.clip_grad_norm_: all are multiplied by min(1, max_norm / (norm + 1e-6)).
    Pascanu et al. 2013, arXiv:1211.5063.

    Parameters
    ----------
    gradients : dict of arrays, or several arrays; changed
    max_norm : float
    apply : bool
        False changes nothing: pass scale=min(1, max_norm / (norm + 1e-6)) to the optimizer, which
        saves a pass over memory.

    Returns
    -------
    float, the norm before; inf or NaN where a gradient is not finite, and then nothing is changed.

    TypeError: not float arrays. ValueError: max_norm is not > 0.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> gradients = {"w": np.array([3.0, 4.0])}
    >>> sf.optim.clip_grad_norm_(gradients, 1.0)
    5.0
    >>> gradients["w"].round(4)
    array([0.6, 0.8])
    """
    if not (is_real(max_norm) or max_norm == math.inf) or not max_norm > 0:
        raise ValueError(f"clip_grad_norm_: max_norm is {max_norm!r}, needs a number > 0")
    arrays = list(gradients.values() if isinstance(gradients, Mapping) else gradients)
    norm = math.sqrt(math.fsum(_core.sum_of_squares(array) for array in arrays))
    if apply and math.isfinite(norm) and norm + 1e-6 > max_norm:
        for array in arrays:
            np.multiply(array, array.dtype.type(max_norm / (norm + 1e-6)), out=array)
    return norm


def cosine_lr(step: int, *, lr: float, warmup: int = 0, total: int, min_lr: float = 0.0) -> float:
    """The learning rate of a step: a linear warm-up, then half a cosine down to min_lr.

    Steps count from 0. During the warm-up it is lr (step + 1) / warmup, so that the first step
    does something; behind `total` it stays min_lr. Loshchilov and Hutter 2017, arXiv:1608.03983.

    ValueError: negative numbers; a warm-up that is longer than the whole.

    >>> import simdformer as sf
    >>> [round(sf.optim.cosine_lr(s, lr=1.0, warmup=2, total=6), 3) for s in range(7)]
    [0.5, 1.0, 1.0, 0.854, 0.5, 0.146, 0.0]
    """
    if not 0 <= warmup <= total or step < 0:
        raise ValueError(
            f"cosine_lr: step, warmup, total are {step}, {warmup}, {total}, "
            "needs numbers >= 0 with warmup <= total"
        )
    if step < warmup:
        return lr * (step + 1) / warmup
    if step >= total:
        return min_lr
    progress = (step - warmup) / (total - warmup)
    return min_lr + 0.5 * (lr - min_lr) * (1 + math.cos(math.pi * progress))
