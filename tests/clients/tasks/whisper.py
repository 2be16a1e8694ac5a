"""A small model with random weights: spectrogram, encoder, logits, greedy and beam decoding."""

import numpy as np

from tests.clients.inputs import fill, numbers

PACKAGES = "openai-whisper"
TOLERANCE = 1e-3


def task_decode(torch):
    import whisper
    from whisper.model import ModelDimensions, Whisper

    audio = {"n_mels": 80, "n_audio_ctx": 1500, "n_audio_state": 64}
    text = {"n_vocab": 51864, "n_text_ctx": 448, "n_text_state": 64}
    layers = {"n_audio_head": 2, "n_audio_layer": 2, "n_text_head": 2, "n_text_layer": 2}
    model = fill(Whisper(ModelDimensions(**audio, **text, **layers))).eval()
    mel = torch.tensor(numbers(1, 80, 3000))
    wave = torch.tensor(numbers(16000) * np.float32(0.1))
    found = {"mel": whisper.log_mel_spectrogram(wave)}
    found["heads"] = model.alignment_heads.indices()
    with torch.no_grad():
        features = model.embed_audio(mel)
        found["features"] = features
        found["logits"] = model.logits(torch.tensor([[50257, 50362, 11]]), features)[..., ::501]
    for name, beams in (("greedy", None), ("beams", 3)):
        options = whisper.DecodingOptions(
            language="en", without_timestamps=True, fp16=False, sample_len=6, beam_size=beams
        )
        result = whisper.decode(model, mel, options)[0]
        found[name], found[f"{name} score"] = result.tokens, result.avg_logprob
    return found | {"moved": model.double().alignment_heads.to_dense().sum()}
