"""Diffusion transformers: layers that see patches of a noisy picture or video, and know the time step and a text [1]_ [2]_.

A step is one denoising step. A vector of the time step, of the picture's class or of a whole text, makes shifts, scales and gates around
every part of a layer (adaptive norms). Tokens of a text come in one of three ways:

- layers have cross-attention to them (PixArt [3]_, Wan);
- text and picture are one sequence, whose tokens share all weights (CogVideoX);
- they are one sequence for attention, and each has weights of its own (MM-DiT [2]_). The last layers may be plain ones of all tokens, whose
  attention and MLP work side by side (Flux).

References
----------
.. [1] Peebles and Xie, "Scalable Diffusion Models with Transformers", ICCV 2023, arXiv:2212.09748, Sec. 3.2.
.. [2] Esser et al., "Scaling Rectified Flow Transformers for High-Resolution Image Synthesis", 2024, arXiv:2403.03206, Sec. 4.
.. [3] Chen et al., "PixArt-alpha", 2023, arXiv:2310.00426, Sec. 2.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal, Self

from pydantic import Field, model_validator

from crossflow.base.files import FileModel
from crossflow.base.limits import Dimension, DimensionOrZero, Flag
from crossflow.workload.transformer import Matrix, Part

# Shift, scale and gate of a part; shift and scale before the last product. [1]
AROUND, LAST = 3, 2
PICTURE = "picture"  # a layer that refines the picture before the text comes


class DiffusionSpec(FileModel):
    """What a diffusion transformer has beside the patches of `image`: its time step, adaptive norms, and a text."""

    text: Literal["none", "cross", "joined", "streams"] = Field(
        "none",
        description="how layers see text: not at all (DiT), by cross-attention (PixArt, Wan), as further tokens of a sequence that share"
        " all weights (joined, CogVideoX) or have their own (streams, MM-DiT)",
    )
    text_tokens: Dimension | None = Field(None, description="tokens of a sample's text; needed with `text`")
    text_width: Dimension | None = Field(None, description="elements of a token as the text encoder gives it; needed with `text`")
    text_mlp: Flag = Field(False, description="whether two products bring them to `hidden` rather than one (PixArt, Wan)")
    text_layers: DimensionOrZero = Field(0, description="layers that refine the text before the first layer (HunyuanVideo, Z-Image)")
    text_gates: Flag = Field(True, description="whether those layers have gates of the time step; those of Z-Image have none")
    picture_layers: DimensionOrZero = Field(
        0, description="first layers that the picture passes before the text is joined to it (Z-Image, Lumina 2), of `text: joined`"
    )
    gives_text: Flag = Field(True, description="whether the last layer of streams gives tokens of the text too; that of SD3 does not")
    single_layers: DimensionOrZero = Field(
        0, description="last layers that have one stream for text and picture, with attention and MLP side by side (Flux)"
    )
    cross_norm: Flag = Field(False, description="whether the norm before cross-attention has weights (Wan)")
    modulation: Literal["layer", "shared", "common"] = Field(
        "layer",
        description="whether each layer has a product that makes shifts, scales and gates, all share one and add vectors of their own"
        " (shared), or all layers alike have the same numbers (common, Flux.2)",
    )
    shifts: Flag = Field(True, description="whether norms are shifted as well as scaled; those of Z-Image are not")
    split_norms: Flag = Field(True, description="whether a joined text has shifts, scales and gates of its own (CogVideoX)")
    modulation_width: Dimension | None = Field(
        None, description="elements of the vector that it makes them of; `hidden` where absent (512 of CogVideoX)"
    )
    frequencies: Dimension = Field(256, description="sines and cosines of the time step that a product takes")
    pooled: DimensionOrZero = Field(0, description="elements of a vector of the whole text, which is added to the time step's (SD3, Flux)")
    guidance: Flag = Field(False, description="whether the strength of guidance is embedded like the time step (Flux.1-dev)")
    classes: DimensionOrZero = Field(0, description="classes whose embeddings are added to the time step's, no class included (DiT: 1001)")
    outputs: Dimension | None = Field(None, description="values of a pixel that it gives; `image.channels` where absent")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for problem in self._contradictions():
            raise ValueError(problem)
        return self

    def _contradictions(self) -> Iterator[str]:
        needed = ("text_tokens", "text_width")
        if self.text != "none":
            yield from (f"{key}: text: {self.text} needs it" for key in needed if getattr(self, key) is None)
        else:
            idle = [key for key in (*needed, "text_mlp", "text_layers", "picture_layers") if getattr(self, key)]
            yield from (f"{key}: there is no text; leave it out, or give text" for key in idle)
        if self.text != "streams" and (self.single_layers or not self.gives_text):
            key = "single_layers" if self.single_layers else "gives_text"
            yield f"{key}: only text: streams has it; leave it out"
        if self.text != "cross" and self.cross_norm:
            yield "cross_norm: only text: cross has it; leave it out"
        if self.text not in ("joined", "none") and self.picture_layers:
            yield "picture_layers: only text: joined has it; leave it out"
        if self.text != "joined" and not self.split_norms:
            yield "split_norms: only text: joined has it; leave it out"
        if not self.text_layers and not self.text_gates:
            yield "text_gates: no layers refine the text; give text_layers, or leave it out"
        if self.single_layers and not self.gives_text:
            yield "gives_text: single_layers take the text from the layers before them; leave one of them out"
        if self.modulation == "shared" and self.text == "streams":
            yield "modulation: streams have products of their own in each layer; leave it out"

    @property
    def joint(self) -> int:
        """Tokens of the text among those of a sample. [1]"""
        return (self.text_tokens or 0) if self.text in ("joined", "streams") else 0

    def pattern(self, layers: int) -> tuple[str, ...]:
        """Kinds of so many layers."""
        if self.picture_layers:
            return (*(PICTURE,) * self.picture_layers, *(self.text,) * (layers - self.picture_layers))
        if self.text != "streams":
            return (self.text,)
        first = max(layers - self.single_layers, 0)
        double = ("streams",) * first if self.gives_text else (*("streams",) * (first - 1), "last")
        return (*double, *("single",) * (layers - first))

    def adapted(self, kind: str, part: Part) -> Part:
        """A part of a layer of a kind, with its adaptive norm, and the weights that text has of its own."""
        if part.attention is not None and part.attention.cross:
            vectors = part.vectors + (2 * part.width if self.cross_norm else 0)
            return replace(part, vectors=vectors, attention=replace(part.attention, rotary=False))
        if kind == "single" and part.attention is None:  # one norm and one bias for both parts
            return replace(part, matrices=tuple(replace(matrix, bias=matrix.bias and matrix.cut == "column") for matrix in part.matrices))
        many = self._around * (2 if kind == "joined" and self.split_norms else 1)
        if self.modulation == "shared":
            return replace(part, vectors=part.vectors + many * part.width, adaptive=True)
        own = (self._modulation(part.width, many),) if self.modulation == "layer" else ()
        if kind == PICTURE or (kind == "last" and part.attention is None):  # of the picture alone
            alone = tuple(replace(matrix, over="picture") for matrix in part.matrices)
            return replace(part, matrices=(*own, *alone), adaptive=True)
        if kind not in ("streams", "last"):
            return replace(part, matrices=(*own, *part.matrices), adaptive=True)
        given = self._around if kind == "streams" else self._last
        text = tuple(replace(one, name="text_modulation", n=given * part.width) for one in own)
        pairs = _streams(part, ends=kind == "streams")
        return replace(part, matrices=(*own, *text, *pairs), vectors=2 * part.vectors, adaptive=True)

    @property
    def _around(self) -> int:
        return AROUND if self.shifts else AROUND - 1

    @property
    def _last(self) -> int:
        return LAST if self.shifts else LAST - 1

    def _common(self, hidden: int) -> Iterator[Matrix]:
        """Products that make the numbers of all layers alike: of a text and a picture, and of layers with one stream."""
        both = self.text == "streams" or (self.text == "joined" and self.split_norms)
        yield from (self._modulation(hidden, 2 * self._around) for _ in range(2 if both else 1))
        if self.single_layers:
            yield self._modulation(hidden, self._around)

    def _modulation(self, hidden: int, many: int) -> Matrix:
        return Matrix(name="modulation", k=self.modulation_width or hidden, n=many * hidden, bias=True, over="sample")

    def embeddings(self, hidden: int, refiner: tuple[Matrix, ...] = ()) -> tuple[Matrix, ...]:
        """Products that make the vector of the time step, and tokens of the text, of which a layer that refines them has `refiner`."""
        width = self.modulation_width or hidden
        entries = (
            ("time", self.frequencies, True),
            ("guidance", self.frequencies, self.guidance),
            ("pooled", self.pooled, self.pooled > 0),
        )
        vectors = [
            Matrix(name=name, k=k, n=width, bias=True, over="sample") for name, given, there in entries if there for k in (given, width)
        ]
        shared = [replace(self._modulation(hidden, 2 * AROUND), k=width)] if self.modulation == "shared" else []
        shared += self._common(hidden) if self.modulation == "common" else []
        widths = [] if self.text == "none" or self.text_width is None else [self.text_width, *([hidden] if self.text_mlp else [])]
        texts = [Matrix(name="text", k=k, n=hidden, bias=True, over="memory") for k in widths]
        refining = [
            *self._refiner_vector(hidden),
            *(one for _ in range(self.text_layers) for one in (*refiner, *self._refiner_gates(hidden))),
        ]
        return (*vectors, *shared, *texts, *(refining if self.text_layers else ()))

    def _refiner_vector(self, hidden: int) -> Iterator[Matrix]:
        """Products that make the vector of gates of layers that refine the text, of the time step and the text's mean (HunyuanVideo)."""
        if self.text_gates and self.text_width is not None:
            for name, given in (("refiner_time", self.frequencies), ("refiner_text", self.text_width)):
                yield from (Matrix(name=name, k=k, n=hidden, bias=True, over="sample") for k in (given, hidden))

    def _refiner_gates(self, hidden: int) -> Iterator[Matrix]:
        if self.text_gates:
            yield Matrix(name="refiner_gates", k=hidden, n=LAST * hidden, bias=True, over="sample")

    def vectors(self, hidden: int) -> int:
        """Parameters of embeddings of classes. [1]"""
        return self.classes * (self.modulation_width or hidden)

    def head(self, hidden: int, elements: int) -> Part:
        """What follows the last layer: shift and scale of a norm, and a product that gives so many values of a patch."""
        product = Matrix(name="latents", k=hidden, n=elements, bias=True, over="picture" if self.joint else "tokens")
        if self.modulation == "shared":
            return Part(type="head", width=hidden, matrices=(product,), vectors=LAST * hidden)
        return Part(type="head", width=hidden, matrices=(self._modulation(hidden, self._last), product))


def _streams(part: Part, *, ends: bool) -> tuple[Matrix, ...]:
    """Matrices of a part, each once for the picture and once for the text, which may give queries, keys and values alone."""
    pairs = [(replace(one, over="picture"), replace(one, name=f"text_{one.name}", over="memory")) for one in part.matrices]
    return tuple(matrix for pair in pairs for matrix in pair if ends or matrix.over == "picture" or matrix.cut == "column")


def refiner(parts: Iterable[Part]) -> tuple[Matrix, ...]:
    """Products of a layer that refines a text, of the parts of another one; scores among its few tokens are small beside them."""
    return tuple(replace(one, name=f"refiner_{one.name}", over="memory", cut="none", kv_heads=0) for part in parts for one in part.matrices)
