"""oneflow_compile of UNets of Stable Diffusion (XL, Video), with DeepCache, Transformer2DModel,
AutoencoderKL; graph files, and pipelines by compile_pipe."""

PACKAGES = "onediff==1.2.0"
SUITE = "test_onediff"
TIME_LIMIT_S = 5400
