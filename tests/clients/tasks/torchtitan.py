"""Llama of torchtitan (its debug model, narrower), laid out by torchtitan on four ranks: tensor
parallel, FSDP2, pipelines and pairs of these; compiled and checkpointed: three steps of AdamW with
clipping, started by torchrun.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib

import numpy as np

from tests.clients.inputs import folder, is_library
from tests.clients.worker import MOCK_VERSION

PACKAGES = (
    "torchtitan==0.2.0 torchdata datasets tokenizers fsspec tyro tomli einops huggingface_hub"
)
TIME_LIMIT_S = 900

ROWS, LENGTH, WORDS = 4, 16, 64

SCRIPT = """
import sys
if {is_library}:
    from oneflow import mock_torch
    mock_torch.enable(lazy=True, mock_version={version!r})
from tests.clients.tasks.torchtitan import train
train(**eval(sys.argv[1]))
"""


def values_of(name, shape):
    """First values of a parameter, which depend on its name alone."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return (rng.standard_normal(shape) * 0.1 + ("norm" in name)).astype(np.float32)


def without_kernels():
    """torchtitan imports Triton for its experts, which Llama does not have."""
    import types

    module = types.ModuleType("torchtitan.models.moe.kernels")
    module.generate_permute_indices = None
    sys.modules[module.__name__] = module


def train(out, fsdp=1, tp=1, pp=1, schedule="1F1B", compiles=False, checkpoints="none"):
    import dataclasses

    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, distribute_tensor

    without_kernels()
    import torchtitan.distributed.parallel_dims as dims
    from torchtitan.components.loss import cross_entropy_loss
    from torchtitan.config import JobConfig
    from torchtitan.distributed import utils
    from torchtitan.models.llama3 import Transformer, llama3_args, parallelize_llama, pipeline_llm

    dims.device_type = "cpu"
    dist.init_process_group("gloo")
    ways = dims.ParallelDims(1, fsdp, 1, tp, pp, 1, 1, dist.get_world_size())
    mesh = ways.world_mesh
    config = JobConfig()
    config.training.seq_len, config.training.local_batch_size = LENGTH, ROWS
    config.training.mixed_precision_param = "float32"
    config.parallelism.pipeline_parallel_degree = pp
    config.parallelism.pipeline_parallel_schedule = schedule
    config.activation_checkpoint.mode = checkpoints
    config.compile.enable, config.compile.backend = compiles, "aot_eager"
    sizes = dataclasses.replace(
        llama3_args["debugmodel"], dim=32, n_layers=4, n_heads=4, n_kv_heads=2, vocab_size=WORDS,
        multiple_of=16, max_seq_len=LENGTH,
    )  # fmt: skip
    with torch.device("meta"):
        model = Transformer(sizes)
    if pp > 1:
        device = torch.device("cpu")
        runner, parts, is_first, is_last = pipeline_llm(
            model, ways, config, device, sizes, parallelize_llama, cross_entropy_loss
        )
    else:
        parts = [parallelize_llama(model, ways, config)]
    for part in parts:
        part.to_empty(device="cpu")
        with torch.no_grad():
            part.init_weights(buffer_device=None)
            for name, p in part.named_parameters():
                for word in ("_orig_mod.", "_checkpoint_wrapped_module."):
                    name = name.replace(word, "")
                whole = torch.from_numpy(values_of(name, tuple(p.shape)))
                if isinstance(p, DTensor):
                    whole = distribute_tensor(whole, p.device_mesh, p.placements)
                p.copy_(whole)
        part.train()
    parameters = [p for part in parts for p in part.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    around = utils.get_train_context(tp > 1, False)
    copies = mesh["dp"].size() if fsdp > 1 else 1
    here = mesh["dp"].get_local_rank() if fsdp > 1 else 0
    losses, norms = [], []
    for step in range(3):
        words = np.random.default_rng(step).integers(0, WORDS, (ROWS * copies, LENGTH + 1))
        own = torch.from_numpy(words[here * ROWS : (here + 1) * ROWS])
        x, y = own[:, :-1].contiguous(), own[:, 1:].contiguous()
        optimizer.zero_grad()
        with around():
            if pp > 1:
                made = []
                given = (x,) if is_first else ()
                runner.step(*given, target=y if is_last else None, losses=made if is_last else None)
                loss = torch.sum(torch.stack(made)) if is_last else torch.tensor(-1.0)
            else:
                loss = cross_entropy_loss(parts[0](x), y)
                loss.backward()
        total = utils.clip_grad_norm_(
            parameters, 1.0, foreach=True, pp_mesh=mesh["pp"] if pp > 1 else None
        )
        optimizer.step()
        loss = loss.detach()
        loss = loss.full_tensor() if isinstance(loss, DTensor) else loss
        if fsdp > 1:
            loss = torch.tensor(utils.dist_mean(loss, mesh["dp_cp"]))
        if pp > 1:
            loss = torch.tensor(utils.dist_max(loss, mesh["pp"]))
        losses.append(float(loss))
        norms.append(float(total))
    if dist.get_rank() == 0:
        with open(out, "w") as file:
            json.dump({"losses": losses, "norms": norms}, file)
    dist.barrier()
    dist.destroy_process_group()


def run(torch, ranks, **ways):
    path = folder()
    script, out = path / "script.py", path / "out.json"
    script.write_text(SCRIPT.format(is_library=is_library(torch), version=MOCK_VERSION))
    launcher = "oneflow.distributed.launch" if is_library(torch) else "torch.distributed.run"
    arguments = repr({"out": str(out), **ways})
    command = [
        sys.executable, "-m", launcher, "--standalone", "--nproc_per_node", str(ranks),
        str(script), arguments,
    ]  # fmt: skip
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-2500:])
    return json.loads(out.read_text())


def task_tensor_parallel(torch):
    return run(torch, 2, tp=2)


def task_fsdp(torch):
    return run(torch, 2, fsdp=2, checkpoints="full")


def task_fsdp_compiled(torch):
    return run(torch, 2, fsdp=2, compiles=True)


def task_pipeline(torch):
    return run(torch, 2, pp=2, schedule="Interleaved1F1B")


def task_fsdp_tensor_parallel(torch):
    return run(torch, 4, fsdp=2, tp=2)


def task_pipeline_tensor_parallel(torch):
    return run(torch, 4, pp=2, tp=2)


def task_pipeline_fsdp(torch):
    return run(torch, 4, pp=2, fsdp=2)
