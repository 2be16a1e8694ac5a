"""The smallest models of 46 families, trained and evaluated; transforms and layers."""

PACKAGES = "flowvision==0.2.2"
SUITE = "test_flowvision"
TIME_LIMIT_S = 5400
