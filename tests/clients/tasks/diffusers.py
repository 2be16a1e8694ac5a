"""The course's DDPM training; DDPM and Stable Diffusion pipelines that generate, are saved and
loaded; DDIM and Euler; img2img; EMA.
"""

from __future__ import annotations

import json

from tests.clients.inputs import fill, folder, integers, numbers, shares

PACKAGES = "diffusers transformers accelerate"
TIME_LIMIT_S = 600
TOLERANCE = 1e-3  # pictures of several steps


def unet():
    from diffusers import UNet2DModel

    return fill(
        UNet2DModel(
            sample_size=16, in_channels=3, out_channels=3, layers_per_block=1,
            block_out_channels=(32, 64), down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        )
    )  # fmt: skip


def task_ddpm_training(torch):
    from diffusers import DDPMScheduler
    from diffusers.optimization import get_cosine_schedule_with_warmup

    model, noises = unet(), DDPMScheduler(num_train_timesteps=20)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = get_cosine_schedule_with_warmup(optimizer, 2, 6)
    losses = []
    for step in range(4):
        x, noise = (torch.tensor(numbers(2, 3, 16, 16, seed=step + k)) for k in (0, 50))
        times = torch.tensor(integers(20, 2, seed=step))
        found = model(noises.add_noise(x, noise, times), times, return_dict=False)[0]
        loss = torch.nn.functional.mse_loss(found, noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": losses}


def task_ddpm_pipeline(torch):
    from diffusers import DDIMPipeline, DDIMScheduler, DDPMPipeline, DDPMScheduler

    pipe = DDPMPipeline(unet(), DDPMScheduler(num_train_timesteps=20))
    pipe.set_progress_bar_config(disable=True)
    drawn = pipe(
        batch_size=1, num_inference_steps=3, generator=torch.Generator().manual_seed(0)
    ).images[0]
    path = folder()
    pipe.save_pretrained(path)
    loaded = DDPMPipeline.from_pretrained(path)
    still = DDIMPipeline(loaded.unet, DDIMScheduler(num_train_timesteps=20))
    still.scheduler.set_timesteps(4)
    x = torch.tensor(numbers(1, 3, 16, 16))
    with torch.no_grad():
        for time in still.scheduler.timesteps:
            x = still.scheduler.step(still.unet(x, time).sample, time, x, eta=0.0).prev_sample
    return {"size": drawn.size, "weight": loaded.unet.conv_in.weight, "picture": x}


def clip_folder():
    from transformers import CLIPTokenizer

    path, letters = folder(), "abcdefghijklmnopqrstuvwxyz"
    marks = ["<|startoftext|>", "<|endoftext|>"]
    words = [*marks, *(f"{letter}</w>" for letter in letters), *letters]
    (path / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (path / "merges.txt").write_text("#version: 0.2\n")
    return CLIPTokenizer(str(path / "vocab.json"), str(path / "merges.txt"), model_max_length=16)


def stable_diffusion():
    from diffusers import (
        AutoencoderKL,
        DDIMScheduler,
        StableDiffusionPipeline,
        UNet2DConditionModel,
    )
    from transformers import CLIPTextConfig, CLIPTextModel

    text = CLIPTextConfig(
        vocab_size=60, hidden_size=32, intermediate_size=37, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=16, bos_token_id=0, eos_token_id=1,
        pad_token_id=1,
    )  # fmt: skip
    inner = UNet2DConditionModel(
        block_out_channels=(32, 64), layers_per_block=1, sample_size=16, in_channels=4,
        out_channels=4, cross_attention_dim=32,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    pictures = AutoencoderKL(
        block_out_channels=(32, 64), in_channels=3, out_channels=3, latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip
    pipe = StableDiffusionPipeline(
        vae=fill(pictures), text_encoder=fill(CLIPTextModel(text)), tokenizer=clip_folder(),
        unet=fill(inner), scheduler=DDIMScheduler(), safety_checker=None, feature_extractor=None,
        requires_safety_checker=False,
    )  # fmt: skip
    pipe.set_progress_bar_config(disable=True)
    return pipe


def made(torch, pipe, **options):
    latents = torch.tensor(numbers(1, 4, 16, 16))
    return pipe(
        "a cat", num_inference_steps=3, guidance_scale=5.0, latents=latents, output_type="np",
        **options,
    ).images  # fmt: skip


def task_stable_diffusion(torch):
    from diffusers import EulerDiscreteScheduler, StableDiffusionPipeline

    pipe = stable_diffusion()
    first = made(torch, pipe)
    path = folder()
    pipe.save_pretrained(path)
    loaded = StableDiffusionPipeline.from_pretrained(path)
    loaded.set_progress_bar_config(disable=True)
    second = made(torch, loaded)
    loaded.enable_attention_slicing()
    loaded.vae.enable_slicing()
    loaded.scheduler = EulerDiscreteScheduler.from_config(loaded.scheduler.config)
    return {"first": first, "loaded": second, "euler": made(torch, loaded)}


def task_img2img_and_lora(torch):
    from diffusers import StableDiffusionImg2ImgPipeline

    pipe = StableDiffusionImg2ImgPipeline(**stable_diffusion().components,
                                          requires_safety_checker=False)  # fmt: skip
    pipe.set_progress_bar_config(disable=True)
    picture = torch.tensor(shares(1, 3, 32, 32))
    with torch.no_grad():
        spread = pipe.vae.encode(picture * 2 - 1).latent_dist
    found = pipe("a cat", image=picture, strength=0.6, num_inference_steps=4, output_type="np")
    return {"mean": spread.mean, "shape": found.images.shape}


def task_ema_and_snr(torch):
    from diffusers import DDPMScheduler
    from diffusers.training_utils import EMAModel, compute_snr

    model = unet()
    average = EMAModel(model.parameters(), decay=0.9)
    fill(model, seed=1)
    for _ in range(3):
        average.step(model.parameters())
    average.copy_to(model.parameters())
    times = torch.tensor(integers(900, 3))
    return {"weight": model.conv_in.weight, "snr": compute_snr(DDPMScheduler(), times)}
