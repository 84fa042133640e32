"""The `workload` section of recommendation models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from crossflow.base.arrays import points
from crossflow.base.files import FileModel
from crossflow.base.limits import Dimension, Finite, Flag, LayerCount, NonNegativeFloat, PositiveFloat, PositiveInt, Seed
from crossflow.base.units import Information
from crossflow.program.embedding.datasets import named
from crossflow.program.embedding.reuse import BINS, Reuse, normalised
from crossflow.workload.dlrm import (
    DLRM_LAYERS,
    Cross,
    Dlrm,
    Encoder,
    Linear,
    Sharder,
    ShardingRule,
    Tables,
    TableSplit,
    interaction_width,
    linears,
)
from crossflow.workload.shared_words import DType, Optimizer, SourcedSpec, listed
from crossflow.workload.traits import WorkloadSpec
from crossflow.workload.transformer import Routing, mlp, self_attention

MLP_LAYERS, TABLES = 1000, 10**6  # of a model, at most
# What an interaction of a kind has, and what it is called.
SIZES = {"transformer": ("layers", "heads", "width", "ffn", "sequence"), "cross": ("layers", "rank")}
CALLED = {"transformer": "a transformer", "cross": "a cross network"}
ROUNDED = 1.01  # reuse factors are published to three digits


class ReuseSpec(FileModel):
    """How often rows of a table are hit in a batch: published factors by name (the name alone will do), or factors of your own."""

    like: str = Field(
        "", description="shipped factors: 2021, 2022, or one of their files such as 2021-3 (`crossflow/program/embedding/reuse.yaml`)"
    )
    factors: tuple[NonNegativeFloat, ...] = Field(
        (), description=f"share of the lookups that go to rows which are hit once, twice, 3 to 4, 5 to 8 ... times: {BINS} of them"
    )
    samples: PositiveInt | None = Field(None, description="samples of the batch in which `factors` were counted")

    @model_validator(mode="before")
    @classmethod
    def _name(cls, data: Any) -> Any:
        return {"like": str(data)} if isinstance(data, str | int) else data

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if bool(self.like) == bool(self.factors) or bool(self.factors) != (self.samples is not None):
            raise ValueError("expected a name, or factors and the samples of the batch in which they were counted")
        if self.like:
            named(self.like)
        elif len(self.factors) != BINS or not 0.98 < sum(self.factors) < 1.02:  # published ones are rounded
            raise ValueError(f"expected {BINS} factors that add up to 1, got {len(self.factors)} that add up to {sum(self.factors):.4g}")
        return self

    def reuse(self) -> Reuse:
        """Factors that add up to one."""
        if self.samples is None:
            return named(self.like)
        return Reuse(factors=tuple(normalised(self.factors).tolist()), samples=self.samples)


class TablesSpec(FileModel):
    """Embedding tables alike."""

    count: Annotated[Dimension, Field(le=TABLES)] = Field(description="tables")
    rows: PositiveInt = Field(description="rows of a table")
    width: Dimension = Field(description="elements of a row")
    pooling: PositiveFloat = Field(1.0, description="rows of a table that a sample looks up, on average")
    distinct: Finite = Field(1.0, gt=0, le=1, description="distinct rows over looked-up rows of a batch; the others are found in cache")
    reuse: ReuseSpec | None = Field(
        None, description="how often rows are hit, which says what each cache holds; in the place of `distinct`"
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.reuse is None:
            return self
        if "distinct" in self.model_fields_set:
            raise ValueError("distinct follows from reuse; leave one of them out")
        reuse = self.reuse.reuse()
        needed = float(reuse.distinct(float(reuse.samples))[0]) * reuse.samples * self.pooling
        if needed > self.rows * ROUNDED:
            batch = f"{reuse.samples * self.pooling:,.0f} lookups of {reuse.samples:,} samples"
            raise ValueError(f"reuse: {batch} hit {needed:,.0f} different rows, more than the table's {self.rows:,}")
        return self

    def tables(self) -> Tables:
        """The tables as the model has them."""
        own = self.model_dump(exclude={"reuse"})
        return Tables(**own, reuse=None if self.reuse is None else self.reuse.reuse())


class ShardingSpec(FileModel):
    """Who gives whole tables, or parts of them, to devices (the name alone will do)."""

    by: Sharder = Field(
        "auto",
        description="naive: in turn; random; greedy by size, lookup, norm-lookup, size-lookup (Lin et al., Table III) or predicted cost; "
        "exact: the least largest cost; auto: the one with the shortest predicted step",
    )
    split: TableSplit | None = Field(
        None,
        description="cut tables that do not fit or cost more than a device's mean by rows or columns; auto where `by` is, none elsewhere",
    )
    memory: Finite = Field(0.8, gt=0, le=1, description="share of a device's memory that tables with their states may take")
    seed: Seed = Field(0, description="of the random one")

    @model_validator(mode="before")
    @classmethod
    def _word(cls, data: Any) -> Any:
        return {"by": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if "seed" in self.model_fields_set and self.by not in ("random", "auto"):
            raise ValueError(f"seed is of the random sharder, which {self.by} does not use; leave it out")
        return self

    def rule(self) -> ShardingRule:
        """The same as the step has it."""
        split = self.split or ("auto" if self.by == "auto" else "none")
        return ShardingRule(by=self.by, split=split, memory=self.memory, seed=self.seed)


class MlpSpec(FileModel):
    """Fully connected layers: their widths one by one (a list alone will do), or a number of square layers."""

    widths: tuple[Dimension, ...] = Field((), max_length=MLP_LAYERS, description="outputs of each layer")
    layers: Dimension | None = Field(None, le=MLP_LAYERS, description="layers that all have `width` inputs and outputs")
    width: Dimension | None = Field(None, description="inputs and outputs of each of `layers`")

    @model_validator(mode="before")
    @classmethod
    def _list(cls, data: Any) -> Any:
        return {"widths": data} if isinstance(data, list | tuple) else data

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        square = self.layers is not None and self.width is not None
        if bool(self.widths) == square or (self.layers is None) != (self.width is None):
            raise ValueError("expected a list of widths, or layers and width of square layers")
        return self

    @property
    def last(self) -> int:
        """Outputs of its last layer. [1]"""
        return self.widths[-1] if self.width is None else self.width

    def linears(self, inputs: int) -> tuple[Linear, ...]:
        """Its layers; square ones take their own width in, whatever comes before."""
        if self.layers is not None and self.width is not None:
            return linears((self.width,) * self.layers, self.width)
        return linears(self.widths, inputs)


class InteractionSpec(FileModel):
    """How embeddings and dense features meet (the kind alone will do where it has no dimensions)."""

    kind: Literal["concatenation", "dot", "transformer", "cross"] = Field(
        "concatenation",
        description="concatenation: side by side; dot: products of all pairs; transformer; cross: a cross network of low rank (DCN V2)",
    )
    layers: LayerCount | None = Field(None, description="layers of the transformer, or cross layers (DCN V2)")
    rank: Dimension | None = Field(None, description="rank of the matrix of a cross layer, which is a product of two")
    heads: Dimension | None = Field(None, description="its attention heads")
    width: Dimension | None = Field(None, description="elements of a token")
    ffn: Dimension | None = Field(None, description="inner width of its MLP")
    sequence: Dimension | None = Field(None, description="tokens of a sample")

    @model_validator(mode="before")
    @classmethod
    def _word(cls, data: Any) -> Any:
        return {"kind": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _possible(self) -> Self:
        own = SIZES.get(self.kind, ())
        if missing := [name for name in own if getattr(self, name) is None]:
            raise ValueError(f"{CALLED[self.kind]} needs {', '.join(missing)}")
        if further := [name for name in type(self).model_fields if name not in ("kind", *own) and getattr(self, name) is not None]:
            others = " or ".join(CALLED[kind] for kind, sizes in SIZES.items() if set(further) <= set(sizes))
            raise ValueError(f"{f'only {others}' if others else 'no kind'} has {', '.join(further)}, not {self.kind}")
        if self.kind == "transformer" and self.width and self.heads and self.width % self.heads:
            raise ValueError(f"width = {self.width} is not a multiple of heads = {self.heads}")
        return self

    def encoder(self) -> Encoder | None:
        """The transformer, if it is one."""
        if not (self.layers and self.heads and self.width and self.ffn and self.sequence):
            return None
        attention = self_attention(width=self.width, heads=self.heads, causal=False)
        return Encoder(
            layers=self.layers, sequence=self.sequence, attention=attention, mlp=mlp(width=self.width, inner=self.ffn, gated=False)
        )

    def cross(self, features: int) -> Cross | None:
        """The cross layers over so many elements, if it is made of them."""
        if self.kind != "cross" or not (self.layers and self.rank):
            return None
        return Cross(layers=self.layers, width=features, rank=self.rank)


class TopExpertsSpec(FileModel):
    """Experts in the place of the top MLP, each as large as it is."""

    count: Dimension = Field(description="experts")
    active: Dimension = Field(description="experts that a sample passes")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.active > self.count:
            raise ValueError(f"a sample cannot pass {self.active} of {self.count} experts")
        return self


class ExchangeSpec(FileModel):
    """How embeddings and gradients travel between devices."""

    forward: DType = Field("fp32", description="type of pooled embeddings on the wire")
    backward: DType = Field("fp32", description="type of their gradients on the wire")
    indices: Literal["int32", "int64"] = Field("int64", description="type of the indices of looked-up rows")
    ahead: Flag = Field(True, description="indices of the next batch travel during this one; if not, lookups wait for them")
    bucket: Information = Field(
        default_factory=lambda: points(25.0 * 2**20), description="gradients that are reduced in one collective, at least"
    )

    def __hash__(self) -> int:
        """A hash of plain values."""
        return hash((self.forward, self.backward, self.indices, self.ahead, float(self.bucket[0])))


class DlrmSpec(SourcedSpec, WorkloadSpec):
    """Recommendation model: embedding tables, bottom MLP, interaction, top MLP or experts."""

    layered: ClassVar[bool] = True

    model: Literal["dlrm"]
    title: str = ""
    notes: str = ""
    sources: Mapping[str, str] = {}
    tables: tuple[TablesSpec, ...] = Field(min_length=1, description="groups of equal tables (a single group needs no list)")
    dense_features: Dimension | None = Field(None, description="numbers of a sample; the bottom MLP's own width where absent")
    bottom: MlpSpec = Field(description="MLP of the dense features")
    interaction: InteractionSpec = Field(default_factory=InteractionSpec, description="how embeddings and dense features meet")
    top: MlpSpec = Field(description="MLP of the interaction's result; with `experts` one of them")
    experts: TopExpertsSpec | None = Field(None, description="experts in the place of the top MLP")
    global_batch: PositiveInt = Field(description="samples of one step over all devices")
    dtype: Literal["fp64", "fp32", "tf32", "fp16", "bf16"] = Field(
        "tf32", description="type that the dense part computes in; tf32 is kept in 4 bytes"
    )
    table_dtype: Literal["fp32", "fp16", "bf16", "int8", "fp8"] = Field("fp16", description="type that tables are kept in")
    optimizer: Optimizer = Field("sgd", description="of the dense part: states kept per parameter 0, 1, 2")
    table_optimizer: Literal["sgd", "adagrad", "rowwise_adagrad"] = Field(
        "rowwise_adagrad", description="of the tables: no state, one a parameter, one a row; fused with their backward pass"
    )
    uneven: Finite = Field(1.0, ge=1, description="lookups of the fullest device over the mean, where whole tables are shared out")
    sharding: ShardingSpec | None = Field(
        None, description="which device holds which table; every device has the mean of all tables where absent"
    )
    exchange: ExchangeSpec = Field(default_factory=ExchangeSpec, description="how embeddings and gradients travel")
    task: Literal["training", "forward"] = "training"
    frozen: Annotated[tuple[Literal["embedding", "bottom", "interaction", "top"], ...], BeforeValidator(listed)] = Field(
        (), description="what fine-tuning leaves as it is; text lists them with commas"
    )

    @model_validator(mode="before")
    @classmethod
    def _one_group(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and isinstance(data.get("tables"), Mapping):
            return {**data, "tables": [data["tables"]]}
        return data

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.interaction.kind == "dot" and len({group.width for group in self.tables}) > 1:
            raise ValueError("interaction: a dot product needs tables of one width, got " + ", ".join(str(t.width) for t in self.tables))
        if self.interaction.kind == "dot" and (last := self.bottom.last) != (width := self.tables[0].width):
            raise ValueError(
                f"interaction: a dot product multiplies vectors of one width, and the bottom MLP ends in {last:,} elements where tables "
                f"have {width:,}; give both the same width, or use concatenation"
            )
        if (cross := self.dlrm().cross) and cross.rank > cross.width:
            raise ValueError(f"interaction: rank = {cross.rank:,} is above the {cross.width:,} features that meet, so no product is saved")
        if self.sharding and self.uneven > 1:
            raise ValueError("uneven: sharding says what each device looks up; leave one of them out")
        for i, group in enumerate(self.tables):
            counted = group.reuse.reuse().samples if group.reuse else self.global_batch
            if counted < self.global_batch:
                place = f"tables[{i}].reuse" if len(self.tables) > 1 else "tables.reuse"
                raise ValueError(f"{place}: counted in a batch of {counted:,} samples, which says nothing of {self.global_batch:,}")
        trained = [layer for layer in DLRM_LAYERS if self.dlrm().layer_parameters(layer) and layer not in self.frozen]
        if self.frozen and not trained:
            raise ValueError(f"frozen: {', '.join(self.frozen)} is the whole model; nothing is left to train")
        return self

    def dlrm(self) -> Dlrm:
        """The model as tables and layers."""
        return _dlrm(self)


def _dlrm(spec: DlrmSpec) -> Dlrm:
    tables = tuple(group.tables() for group in spec.tables)
    bottom = spec.bottom.linears(spec.dense_features or (spec.bottom.widths[:1] or (1,))[0])
    encoder = spec.interaction.encoder()
    width = interaction_width(spec.interaction.kind, tables, bottom[-1].n, encoder)
    return Dlrm(
        name=spec.title or spec.model,
        tables=tables,
        dense_features=bottom[0].k,
        bottom=bottom,
        top=spec.top.linears(width),
        interaction=spec.interaction.kind,
        encoder=encoder,
        cross=spec.interaction.cross(width),
        routing=Routing(experts=spec.experts.count, active=spec.experts.active) if spec.experts else None,
    )
