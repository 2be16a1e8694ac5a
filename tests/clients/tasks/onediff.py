"""oneflow_compile of UNet2DConditionModel, Transformer2DModel, AutoencoderKL of diffusers."""

PACKAGES = "onediff==1.2.0"
SUITE = "test_onediff"
TIME_LIMIT_S = 5400
