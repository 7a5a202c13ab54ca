"""Videos of evaluation and of what the agent sees in training, as mp4. The implementation is in drqv2/logging."""

from drqv2.logging.video import Mp4, TrainVideoRecorder, VideoRecorder

__all__ = ["Mp4", "TrainVideoRecorder", "VideoRecorder"]
