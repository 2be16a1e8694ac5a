"""Training steps or inference of networks for images, and of an LSTM, beside PyTorch's eager mode
and torch.compile.

    python benchmarks/vision_steps.py [--models resnet18,resnet18x96,resnet50,mobilenet,vit,swin]
        [--rounds 9] [--threads 1] [--compile] [--mixed] [--inference] [--json FILE]

ResNet-18 and -50, MobileNet v3 (large), ViT-S/16, Swin-T (`vision_models.py`) with images of
224 x 224, ResNet-18 also of 96 x 96, and the LSTM of `models.py`, measured as `train_step.py` does;
a turn is a step (five of the LSTM).
"""

from __future__ import annotations

from measure import arguments, report
from train_step import add_modes, measure_alone
from vision_models import IMAGES


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--models", default=",".join([*IMAGES, "lstm"]))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1, help="of both sides")
    parser.add_argument("--compile", action="store_true", help="torch.compile, too (needs g++)")
    add_modes(parser)
    args = parser.parse_args()
    rows = [row for name in args.models.split(",") for row in measure_alone(name, args)]
    report("training step beside torch", rows, args.json)


if __name__ == "__main__":
    main()
