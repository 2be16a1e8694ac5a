"""Models of transformers, diffusers, timm and torchvision: same file, forward and backward."""

PACKAGES = "transformers==5.23.0 diffusers==0.42.1 timm==1.0.31 torchvision==0.29.2"
SUITE = "test_models_on_torch_names"
TIME_LIMIT_S = 5400
