"""GPT, BERT, T5, ViT, Swin: eager, as graphs, in all layouts of 1 to 8 ranks; its trainer."""

PACKAGES = "libai==0.1.1"
SUITE = "test_libai"
TIME_LIMIT_S = 5400
