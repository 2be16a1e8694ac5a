"""ResNet-50, wide-and-deep, BERT of Oneflow-Inc/models: three steps, eager and as graphs."""

PACKAGES = "oneflow-models"
SUITE = "test_oneflow_models"
TIME_LIMIT_S = 5400
