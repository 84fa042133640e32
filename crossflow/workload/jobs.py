"""What a step of a workload section computes: the `Job` of a transformer, the `DlrmJob` of a recommendation model."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from crossflow.base.arrays import Array
from crossflow.base.formats import DTYPE_BYTES
from crossflow.workload.adapters import AdapterMix
from crossflow.workload.frozen import frozen_layers
from crossflow.workload.job import Draft, ImageTower, Job
from crossflow.workload.shared_words import OPTIMIZER_STATES
from crossflow.workload.spec import TransformerSpec

if TYPE_CHECKING:
    from crossflow.workload.dlrm import DlrmJob
    from crossflow.workload.dlrm_spec import DlrmSpec


@functools.lru_cache(maxsize=64)
def job_of(workload: TransformerSpec) -> Job:
    """What a step of a transformer computes."""
    model = workload.transformer()
    guided = workload.serving.guided if workload.task == "serving" else None
    prompt, output = workload.tokens, workload.output or 0
    return Job(
        model=model,
        task=workload.step,
        dtype=workload.dtype,
        weight_dtype=workload.weight_dtype,
        structured=workload.weight_sparsity is not None,
        kv_dtype=workload.kv_dtype,
        optimizer_states=OPTIMIZER_STATES[workload.optimizer],
        dropout=workload.dropout and workload.task == "training",
        base=(workload.adapters.base or "") if model.adapted and workload.adapters else "",
        base_bits=workload.adapters.bits if model.adapted and workload.adapters else 0.0,
        frozen=frozen_layers(workload.frozen, model) if workload.frozen else None,
        context=prompt + output // 2,
        cached=prompt + output if workload.serves else 0,
        staggered=workload.task == "serving",
        apart=workload.task == "serving" and workload.serving.prefill is not None,
        pooled=workload.step == "decode" and workload.serving.experts is not None,
        draft=_draft_of(workload),
        tower=_tower_of(workload),
        adapters=_mix_of(workload),
        likeliest=workload.task == "serving" and workload.serving.likeliest,
        mask=guided.share * guided.token if guided else 0.0,
        masks_beside=guided.overlapped if guided else True,
        written=1 + (workload.serving.speculation.tokens if workload.task == "serving" and workload.serving.speculation else 0),
    )


def _mix_of(workload: TransformerSpec) -> AdapterMix | None:
    """Adapters of a service beside its model."""
    own = workload.serving.adapters
    if workload.task != "serving" or own is None:
        return None
    return AdapterMix(count=own.count, share=own.share, skew=own.skew, slots=own.slots or own.count)


def _draft_of(workload: TransformerSpec) -> Draft | None:
    """The model that guesses tokens of a service, for requests of the same lengths."""
    guesses = workload.serving.speculation
    if workload.task != "serving" or guesses is None or guesses.draft is None:
        return None
    return Draft(job=job_of(guesses.draft.described), tp=guesses.draft.tp or 0)


def _tower_of(workload: TransformerSpec) -> ImageTower | None:
    """The model of the images in the prompts of a service, where the devices that read prompts encode them."""
    images = workload.serving.images
    if workload.task != "serving" or images is None or images.encode is not None:
        return None
    return ImageTower(job=job_of(images.described), often=images.count / workload.tokens, tokens=images.each, tp=images.tp or 0)


def tokens_of(job: Job) -> Array | int:
    """Tokens that one sample of a transformer counts in a step, 0 of a model of images."""
    return job.tokens(job.model.tokens) if np.any(job.model.vocabulary) else 0


def dlrm_job(spec: DlrmSpec) -> DlrmJob:
    """What a step of a workload section computes."""
    exchange = spec.exchange
    from crossflow.workload.dlrm import DlrmJob

    return DlrmJob(
        model=spec.dlrm(),
        dtype=spec.dtype,
        training=spec.task == "training",
        optimizer_states=OPTIMIZER_STATES[spec.optimizer],
        table_optimizer=spec.table_optimizer,
        table=DTYPE_BYTES[spec.table_dtype],
        forward=DTYPE_BYTES[exchange.forward],
        backward=DTYPE_BYTES[exchange.backward],
        index=DTYPE_BYTES["int32"] * (2 if exchange.indices == "int64" else 1),
        ahead=exchange.ahead,
        bucket=float(exchange.bucket[0]),
        uneven=spec.uneven,
        sharding=spec.sharding.rule() if spec.sharding else None,
        frozen=frozenset(spec.frozen),
    )
