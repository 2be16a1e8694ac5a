"""YOLOv5s of one-yolov5: three training steps, then detections."""

PACKAGES = "one-yolov5"
SUITE = "test_one_yolov5"
TIME_LIMIT_S = 5400
