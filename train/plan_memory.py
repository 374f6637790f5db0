"""How much memory a training step needs, by part, from counts and shapes alone: no model is loaded here.

    weights      every parameter in its dtype (4-bit ones at 4.13 bits)
    adapter      the LoRA matrices, in the dtype that PEFT gives them
    gradients    one value a trained parameter, in that parameter's dtype
    optimiser    two moments a trained parameter (AdamW)
    activations  what the backward pass needs again, layer by layer
    loss         logits of the supervised positions only, and what the loss makes of them
    reserve      context and workspaces of the GPU library, and what the allocator cannot use

All sizes are bytes. `GIB` is the unit that graphics cards are sold by: "24 GB" is 24 * 2**30 bytes.

The activation formulas count the tensors that autograd keeps in the model code of the transformers library, in the
way of Korthikanti et al. 2022 (arXiv 2205.05198, section 4.1); the coefficients are our own count, since gated MLPs,
RMSNorm in float32, grouped-query attention and adapters are not in that paper. The tests compare them with what
autograd really keeps, and the whole with the peak memory of real training steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

GIB = 2**30

# 4-bit NF4 with double quantisation (arXiv 2305.14314, section 3): 4 bits, an 8-bit scale for each block of 64 values,
# a 32-bit scale for each 256 of those scales.
FOUR_BIT_BYTES = (4 + 8 / 64 + 32 / (64 * 256)) / 8

# Our allowance on a GPU: CUDA context and cuBLAS workspaces, and the part of the rest lost to the allocator's blocks.
GPU_CONTEXT = 0.75 * GIB
GPU_FRAGMENTS = 0.05
# On a CPU: the heap keeps what is freed (train/memory.py), and with it the gaps between tensors of different size.
# Three runs of 0.6 to 0.9 GB took 1.3, 1.4 and 2.5 times what their tensors need (docs/plan.md).
CPU_FRAGMENTS = 0.4

# Positions and words that TRL's fused head works on at once (trl.kernels.chunked_logprob, trl 1.16).
TILE = (4096, 32768)

Strategy = Literal["one device", "DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3", "FSDP"]
STRATEGIES: tuple[Strategy, ...] = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3", "FSDP")


@dataclass(frozen=True)
class Linear:
    """One matrix of a layer. `group` is shared by those that read the very same input."""

    inputs: int
    outputs: int
    group: str
    trained: bool = False
    rank: int = 0
    """LoRA rank; 0: no adapter."""


@dataclass(frozen=True)
class Layer:
    """One decoder (or encoder) layer."""

    hidden: int
    query: int
    """Query width: heads * head size."""
    key_value: int
    """Width of the keys, and again of the values: key-value heads * head size."""
    heads: int
    intermediate: int
    linears: tuple[Linear, ...]
    norms: tuple[int, ...]
    """Widths of the norms; two of `hidden` in a Llama, more in Gemma-2 (after the blocks) and Qwen3 (queries, keys)."""
    gated: bool = True
    """True: act(gate) * up; False: act(up), as in BERT."""
    norms_trained: bool = False
    rms_norm: bool = True
    """RMSNorm written in float32 steps; False: torch's LayerNorm."""
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    softcap: bool = False
    """Scores go through a tanh, as in Gemma-2."""


@dataclass(frozen=True)
class Model:
    """Counts and shapes of a model, as built on the meta device. Bytes follow the dtypes it was built with."""

    layers: tuple[Layer, ...]
    hidden: int
    vocab: int
    parameters: int
    """Of the base model, tied ones once."""
    trainable: int
    weight_bytes: float
    """Base weights, trained or not."""
    adapter_bytes: float
    trainable_bytes: float
    largest_layer_bytes: float
    """Weights of the largest layer or embedding: what ZeRO-3 and FSDP gather whole."""
    head_trained: bool
    four_bit: bool = False
    dora: bool = False
    adapters: int = 0
    """Parameters of the adapter; `parameters` does not hold them."""
    softcap: bool = False
    """Logits go through a tanh, as in Gemma-2."""


@dataclass(frozen=True)
class Step:
    """What one training step forwards at most on one device, and how."""

    batch: int
    length: int
    supervised: int
    """Positions with loss in the batch; 0 for a scorer."""
    padded: bool = True
    """Rows of different length: attention then gets a mask and repeats grouped keys and values."""
    dtype_bytes: int = 2
    attention: str = "sdpa"
    checkpointing: bool = False
    offloading: bool = False
    """Activations wait in the host's memory (TRL's activation_offloading)."""
    accumulation: int = 1
    moment_bytes: float | None = None
    """Optimiser bytes a trained parameter; None: AdamW, two values in the parameter's dtype."""
    dropout: float = 0.0
    """LoRA dropout."""
    on_gpu: bool = True

    @property
    def tokens(self) -> int:
        return self.batch * self.length


@dataclass(frozen=True)
class Memory:
    """Peak memory of one device in bytes, by part. `needs` tells why a strategy is not possible (then no figures)."""

    parts: Mapping[str, float] = field(default_factory=dict)
    total: float | None = None
    needs: str | None = None


def attention_kept(layer: Layer, step: Step) -> float:
    """Bytes a token that the attention of one layer keeps: rotated queries and keys, values, output, and the scores
    where the attention is written out.

    sdpa (a fused kernel, arXiv 2205.14135): no scores, one float32 a head. Fused kernels draw attention dropout on a
    GPU only, so with it a CPU keeps scores, too.
    eager: for each head and each other position the float32 softmax, its copy in the model's dtype when that is
    smaller, and two more with dropout. This part grows with the square of the length.
    """
    d = step.dtype_bytes
    grouped = layer.key_value < layer.query
    written_out = step.attention == "eager" or layer.softcap or (layer.attention_dropout > 0 and not step.on_gpu)
    repeated = grouped and (step.padded or written_out)
    keys_values = 2 * (layer.query if repeated else layer.key_value)
    kept: float = d * (layer.query + keys_values)
    if written_out:
        a_score = 4 + (d if d < 4 else 0) + (d if layer.softcap else 0)
        a_score += d + (1 if step.on_gpu else d) if layer.attention_dropout else 0
        kept += layer.heads * step.length * a_score
        if any(linear.trained or linear.rank for linear in layer.linears if linear.group == "attention output"):
            kept += d * layer.query
    else:
        kept += d * layer.query + 4 * layer.heads
        if step.padded and step.attention == "sdpa":
            kept += d * step.length  # the mask, made again as numbers in every layer
    return kept


def norm_kept(width: int, trained: bool, rms: bool, dtype_bytes: int) -> float:
    """Bytes a token that a norm keeps: its input (RMSNorm: in float32), and the normalised input when it is trained.

    LayerNorm is one kernel and keeps its input and two numbers.
    """
    if not rms:
        return dtype_bytes * width + 8
    return 4 * width + (dtype_bytes * width if trained else 0) + 8


def inputs_kept(layer: Layer, model: Model, step: Step) -> float:
    """Bytes a token kept as the inputs of the layer's matrices.

    A frozen matrix keeps nothing. A trained one keeps its input, once for all that read the same. An adapter keeps a
    copy for itself where its input passes a dropout (and the mask: one byte on a GPU, one number on a CPU) or is cast
    between the base's and the adapter's dtype, else the shared input; and `rank` numbers between its two halves.
    DoRA keeps its base's and its own output besides.
    """
    d = step.dtype_bytes
    cast = d < 4 and not model.four_bit  # the trainer makes 4-bit adapters bfloat16, PEFT makes others float32
    kept: float = 0
    shared: dict[str, int] = {}
    for linear in layer.linears:
        if linear.trained:
            shared[linear.group] = linear.inputs
        if linear.rank:
            kept += d * linear.rank
            if cast or step.dropout:
                kept += d * linear.inputs
            else:
                shared[linear.group] = linear.inputs
            if step.dropout:
                kept += linear.inputs * (1 if step.on_gpu else 4 if cast else d)
            if model.dora:
                kept += 2 * d * linear.outputs
    # The fused attention keeps its output anyway; an unfused one counts it in attention_kept.
    shared.pop("attention output", None)
    return kept + d * sum(shared.values())


def layer_kept(layer: Layer, model: Model, step: Step) -> float:
    """Bytes that one layer keeps for the backward pass, for all tokens of the step."""
    d = step.dtype_bytes
    kept = sum(norm_kept(width, layer.norms_trained, layer.rms_norm, d) for width in layer.norms)
    kept += attention_kept(layer, step) + inputs_kept(layer, model, step)
    # gate and up before, act(gate) after; without a gate only what goes into the activation.
    kept += d * layer.intermediate * (3 if layer.gated else 1)
    if layer.hidden_dropout:
        kept += 2 * layer.hidden * (1 if step.on_gpu else d)
    return kept * step.tokens


def layer_passing(layer: Layer, step: Step) -> float:
    """Bytes that one layer needs for a moment: in the backward pass the gradients inside the MLP and of the residual,
    or, where the attention is written out, three more matrices of scores."""
    scores = 3 * step.dtype_bytes * step.tokens * layer.heads * step.length
    if step.attention == "eager" or layer.softcap:
        return max(scores, _mlp_passing(layer, step))
    return _mlp_passing(layer, step)


def _mlp_passing(layer: Layer, step: Step) -> float:
    return step.dtype_bytes * step.tokens * ((3 if layer.gated else 2) * layer.intermediate + 2 * layer.hidden)


def casts_passing(model: Model, step: Step) -> float:
    """Bytes of the widest adapter's input in float32, before and after its dropout: made when a float32 adapter reads
    a half-precision base, kept only for a moment."""
    widest = max((linear.inputs for layer in model.layers for linear in layer.linears if linear.rank), default=0)
    return 0.0 if step.dtype_bytes == 4 or model.four_bit else 2 * 4.0 * widest * step.tokens


def activations_kept(model: Model, step: Step) -> tuple[float, float]:
    """(kept until the backward pass begins, the most that one layer's backward pass adds), in bytes.

    With gradient checkpointing (arXiv 1604.06174, per layer) only each layer's input is kept, and one layer at a time
    is computed again: its own activations then come on top. With offloading, what is kept waits on the host, two
    layers' worth is on the device.
    """
    top = norm_kept(model.hidden, model.layers[-1].norms_trained, model.layers[-1].rms_norm, step.dtype_bytes)
    above: float = top * step.tokens
    passing = max(layer_passing(layer, step) for layer in model.layers) + casts_passing(model, step)
    each = [layer_kept(layer, model, step) for layer in model.layers]
    if not step.checkpointing:
        return (above + 2 * max(each) if step.offloading else above + sum(each)), passing
    inputs = step.dtype_bytes * step.tokens * sum(layer.hidden for layer in model.layers)
    return above + (0 if step.offloading else inputs), passing + max(each)


def loss_bytes(model: Model, step: Step) -> float:
    """Logits and what the loss makes of them, at the moment its backward pass is widest.

    Only the P supervised positions go through the LM head. On a CPU (train/loss.py): P * vocabulary logits and, of the
    same size, their gradient; one more under a soft cap. On a GPU (TRL's fused head): a tile of at most 4096 positions
    by 32768 words at a time, and, where the head is trained, its gradient in float32. In both cases the hidden states
    picked out for them, and their gradient.
    """
    d, positions = step.dtype_bytes, step.supervised
    if not positions:
        return 0.0
    hidden = positions * model.hidden
    if step.on_gpu:
        tile = d * min(positions, TILE[0]) * min(model.vocab, TILE[1])
        return tile + (d + 4) * hidden + (4 * model.vocab * model.hidden if model.head_trained else 0)
    return positions * model.vocab * d * (3 if model.softcap else 2) + 2 * d * hidden


def passing_weights(model: Model, step: Step) -> float:
    """Matrices made for a moment, the largest counts. A 4-bit one is unpacked into the model's dtype whenever it is
    used; DoRA makes the product of its two halves, a copy of the matrix in its own dtype and a unit matrix."""
    linears = [linear for layer in model.layers for linear in layer.linears]
    unpacked = max((2.0 * each.inputs * each.outputs for each in linears), default=0.0) if model.four_bit else 0.0
    if not model.dora:
        return unpacked
    return unpacked + max((4.0 * each.inputs * (2 * each.outputs + each.inputs) for each in linears), default=0.0)


def optimiser_bytes(model: Model, step: Step) -> float:
    """AdamW: two moments a trained parameter, each in the parameter's dtype (Kingma and Ba 2015, arXiv 1412.6980)."""
    return 2 * model.trainable_bytes if step.moment_bytes is None else step.moment_bytes * model.trainable


def _peak(kept: float, passing: float, loss: float, gradients: float, head_gradient: float, accumulated: bool) -> float:
    """The most that activations, loss and gradients take together, in bytes.

    The backward pass frees activations while it makes gradients, layer by layer, so the sum is greatest at one of its
    ends: at the loss (all activations, the head's gradient), or when the last gradient is made (no activations). With
    gradient accumulation the gradients are there all the time.
    """
    if accumulated:
        return kept + max(loss, passing) + gradients
    return max(kept + max(loss + head_gradient, passing), gradients + passing)


def one_device(model: Model, step: Step, strategy: Strategy = "one device", devices: int = 1) -> Memory:
    """Peak memory of a device that trains alone, or as one of `devices` under a strategy.

    DDP: everything everywhere, and a second set of gradients in its communication buckets.
    ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054, section 5): stage 1 splits the optimiser's state over the N
    devices, stage 2 the gradients, too, stage 3 the weights, too. In half precision DeepSpeed keeps a float32 copy of
    the trained weights with the optimiser's state: 12 bytes a parameter in all.
    FSDP splits all three; trained parameters, their gradients and moments are float32.
    ZeRO-3 and FSDP gather two layers whole at a time: the one at work and the next.
    """
    trainable, weights = model.trainable_bytes, model.weight_bytes
    adapter, gradients, optimiser = model.adapter_bytes, trainable, optimiser_bytes(model, step)
    gathered: float = 0
    if strategy in ("ZeRO-3", "FSDP") and model.four_bit:
        return Memory(needs="4-bit weights are not split: each device holds them whole; use DDP, ZeRO-1 or ZeRO-2")
    if strategy == "DDP":
        gradients *= 2
    elif strategy.startswith("ZeRO"):
        if step.dtype_bytes < 4 and step.moment_bytes is None:
            optimiser = 12.0 * model.trainable
        optimiser /= devices
        gradients /= devices if strategy != "ZeRO-1" else 1
    elif strategy == "FSDP":
        if not model.adapter_bytes:
            weights = 4.0 * model.parameters
        gradients, optimiser = 4.0 * model.trainable / devices, 8.0 * model.trainable / devices
    if strategy in ("ZeRO-3", "FSDP"):
        gathered = 2 * model.largest_layer_bytes
        weights, adapter = weights / devices, adapter / devices
    kept, passing = activations_kept(model, step)
    loss = loss_bytes(model, step)
    passing += passing_weights(model, step)
    head = model.vocab * model.hidden * step.dtype_bytes if model.head_trained else 0
    peak = _peak(kept, passing, loss, gradients, head, step.accumulation > 1)
    parts = {"weights": weights + gathered, "adapter": adapter, "gradients": gradients, "optimiser": optimiser}
    parts["activations"] = kept + passing
    parts["logits and loss"] = loss
    static = parts["weights"] + adapter + optimiser
    all_parts = static + peak
    parts["reserve"] = GPU_CONTEXT + GPU_FRAGMENTS * all_parts if step.on_gpu else CPU_FRAGMENTS * all_parts
    return Memory(parts, all_parts + parts["reserve"])
