"""Writes the texts of this folder: `python tests/data/jax/make.py`, with jax 0.10.2 on a machine without accelerators.

Models are plain JAX and written here. `reference.json` holds what XLA itself counts of them (`cost_analysis`), and their parameters.
"""

import json
import os
import re
import tempfile
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

HERE = Path(__file__).parent
LAYERS, WIDTH, INNER, HEADS, VOCABULARY, SAMPLES, TOKENS = 4, 64, 256, 4, 512, 8, 32
MESH = Mesh(np.array(jax.devices()).reshape(4, 2), ("fsdp", "tp"))


def sized(shapes, dtype=jnp.bfloat16):
    return jax.tree.map(lambda shape: jax.ShapeDtypeStruct(shape, dtype), shapes, is_leaf=lambda one: isinstance(one, tuple))


# A decoder without norms: scan over layers, each computed again in the backward pass, weights cut over fsdp and tp.
SHAPES = {
    "table": (VOCABULARY, WIDTH),
    "layers": {
        "qkv": (LAYERS, 3, WIDTH, WIDTH),
        "out": (LAYERS, WIDTH, WIDTH),
        "up": (LAYERS, WIDTH, INNER),
        "down": (LAYERS, INNER, WIDTH),
    },
}
CUT = {
    "table": P(None, "fsdp"),
    "layers": {
        "qkv": P(None, None, "fsdp", "tp"),
        "out": P(None, "tp", "fsdp"),
        "up": P(None, "fsdp", "tp"),
        "down": P(None, "tp", "fsdp"),
    },
}


def layer(x, weights):
    samples, tokens, width = x.shape
    q, k, v = (jnp.matmul(x, weights["qkv"][i]).reshape(samples, tokens, HEADS, width // HEADS) for i in range(3))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (width // HEADS) ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones((tokens, tokens), bool)), scores, -1e9)
    found = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v).reshape(x.shape)
    x = x + found @ weights["out"]
    return x + jax.nn.relu(x @ weights["up"]) @ weights["down"], None


def loss(weights, tokens):
    x = weights["table"][tokens]
    x, _ = jax.lax.scan(jax.checkpoint(layer), x, weights["layers"])
    logits = (x @ weights["table"].T).astype(jnp.float32)
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.roll(tokens, -1, 1)[..., None], -1))


def step(weights, tokens):
    found, gradients = jax.value_and_grad(loss)(weights, tokens)
    return found, jax.tree.map(lambda one, gradient: one - (1e-3 * gradient).astype(one.dtype), weights, gradients)


def plain(text):
    """Without tables of source lines, layouts and heads of computations, and of what else is said of an operation its name alone."""
    text = re.sub(r"\nFileNames\n.*?\n\n(?=%|ENTRY)", "\n\n", text, flags=re.S)
    text = re.sub(r", metadata=\{(op_name=\"(?:[^\"\\]|\\.)*\")?[^}]*\}", lambda one: f", metadata={{{one[1]}}}" if one[1] else "", text)
    text = re.sub(r"^(.*(?:parameter\(|ROOT %\S+ = \w+\[\] ).*), metadata=\{op_name=\"[^\"]*/[^\"]*\"\}", r"\1", text, flags=re.M)
    unnamed = "reshape|broadcast|transpose|get-tuple-element|constant|iota|tuple|compare|select|convert|while"
    text = re.sub(rf"^(.* (?:{unnamed})\(.*), metadata=\{{[^}}]*\}}$", r"\1", text, flags=re.M)
    text = re.sub(r"^((?:ENTRY )?%[\w.\-]+) \(.*\{$", r"\1 {", text, flags=re.M)
    text = re.sub(r"/\*index=\d+\*/|(?<=\])\{[\d,]*\}", "", text)
    text = text.replace("/while/body/closed_call", "/while")
    return re.sub(r", (?:backend_config=\{\"outer[^}]*\}|frontend_attributes=\{[^}]*\})", "", text)


def partitioned(lowered):
    with tempfile.TemporaryDirectory() as folder:
        lowered.compile(compiler_options={"xla_dump_to": folder, "xla_dump_hlo_pass_re": "spmd-partitioning"})
        return next(Path(folder).glob("*after_spmd-partitioning*")).read_text()


def decoder():
    """Written after partitioning, before the compiler for CPUs widens bf16."""
    cut = jax.tree.map(lambda one: NamedSharding(MESH, one), CUT, is_leaf=lambda one: isinstance(one, P))
    jitted = jax.jit(step, in_shardings=(cut, NamedSharding(MESH, P("fsdp"))), out_shardings=(None, cut), donate_argnums=0)
    lowered = jitted.lower(sized(SHAPES), jax.ShapeDtypeStruct((SAMPLES, TOKENS), jnp.int32))
    (HERE / "decoder.hlo").write_text(plain(partitioned(lowered)))


def llama():
    """Forward pass of a small Llama on one device, with names; layers unrolled for what XLA counts, for it counts a loop's body once."""
    width, inner, heads, kv, layers, vocabulary, samples, tokens = 256, 512, 8, 4, 3, 1024, 2, 128
    each = width // heads
    shapes = {
        "table": (vocabulary, width), "head": (width, vocabulary), "norm": (width,),
        "layers": {
            "q": (layers, width, width), "k": (layers, width, kv * each), "v": (layers, width, kv * each), "o": (layers, width, width),
            "gate": (layers, width, inner), "up": (layers, width, inner), "down": (layers, inner, width), "n1": (layers, width),
            "n2": (layers, width),
        },
    }  # fmt: skip

    def norm(x, weight):
        x = x.astype(jnp.float32)
        return (x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)).astype(jnp.bfloat16) * weight

    @jax.named_scope("block")
    def block(x, w):
        with jax.named_scope("attention"):
            h = norm(x, w["n1"])
            q = (h @ w["q"]).reshape(samples, tokens, kv, heads // kv, each)
            k, v = ((h @ w[name]).reshape(samples, tokens, kv, each) for name in ("k", "v"))
            scores = jnp.einsum("bqghd,bkgd->bghqk", q, k) * each**-0.5
            scores = jnp.where(jnp.tril(jnp.ones((tokens, tokens), bool)), scores, -1e9)
            x = x + jnp.einsum("bghqk,bkgd->bqghd", jax.nn.softmax(scores), v).reshape(x.shape) @ w["o"]
        with jax.named_scope("mlp"):
            h = norm(x, w["n2"])
            return x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"], None

    def forward(params, ids, unroll=False):
        x = params["table"][ids]
        if unroll:
            for i in range(layers):
                x, _ = block(x, jax.tree.map(lambda one, i=i: one[i], params["layers"]))
        else:
            x, _ = jax.lax.scan(block, x, params["layers"])
        return norm(x, params["norm"]) @ params["head"]

    ids = jax.ShapeDtypeStruct((samples, tokens), jnp.int32)
    lowered = jax.jit(forward).lower(sized(shapes), ids)
    text = re.sub(r'^#loc\d* = loc\((?!"[^"]*"\(|"[^"]*"\)).*\n', "", lowered.as_text(debug_info=True), flags=re.M)
    (HERE / "llama.mlir").write_text(text.replace(", precision = [DEFAULT, DEFAULT]", ""))
    unrolled = jax.jit(lambda params, ids: forward(params, ids, unroll=True)).lower(sized(shapes), ids)
    leaves = jax.tree.leaves(sized(shapes))
    return {"flops": unrolled.cost_analysis()["flops"], "parameters": sum(one.size for one in leaves)}


def experts():
    """Work that each device does by itself: experts behind an all-to-all, a ring, a gather and a sum that is divided."""

    def inner(x, up, down):
        x = jax.lax.all_to_all(x, "fsdp", split_axis=0, concat_axis=1, tiled=True)
        y = jnp.einsum("ecd,edf->ecf", x, up)
        y = jax.lax.psum_scatter(jnp.einsum("ecf,efd->ecd", jax.nn.relu(y), down), "tp", scatter_dimension=2, tiled=True)

        def turn(state, _):
            part, total = state
            return (jax.lax.ppermute(part, "fsdp", [(i, (i + 1) % 4) for i in range(4)]), total + part), None

        (_, y), _ = jax.lax.scan(turn, (y, jnp.zeros_like(y)), None, length=4)
        y = jax.lax.all_gather(y, "tp", axis=2, tiled=True)
        return jax.lax.all_to_all(y, "fsdp", split_axis=1, concat_axis=0, tiled=True)

    cut = (P(None, "fsdp"), P("fsdp", None, "tp"), P("fsdp", "tp"))
    mapped = jax.shard_map(inner, mesh=MESH, in_specs=cut, out_specs=P(None, "fsdp"), check_vma=False)
    given = sized([(8, 64, 128), (8, 128, 256), (8, 256, 128)])
    (HERE / "experts.mlir").write_text(jax.jit(mapped).lower(*given).as_text())


def compiled():
    """A perceptron on four replicas, as the compiler for CPUs leaves it: fused, with bf16 widened to fp32."""

    def error(weights, x):
        return jnp.mean(jnp.square(jax.nn.relu(x @ weights[0]) @ weights[1]).astype(jnp.float32))

    def descend(weights, x):
        return [one - 1e-2 * gradient for one, gradient in zip(weights, jax.grad(error)(weights, x), strict=True)]

    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    whole, cut = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    lowered = jax.jit(descend, in_shardings=([whole, whole], cut), out_shardings=[whole, whole]).lower(
        *sized([[(64, 256), (256, 64)], (128, 64)])
    )
    (HERE / "perceptron.hlo").write_text(plain(lowered.compile().as_text()))


if __name__ == "__main__":
    decoder()
    experts()
    compiled()
    (HERE / "reference.json").write_text(json.dumps({"llama": llama()}, indent=1) + "\n")
