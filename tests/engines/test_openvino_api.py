import subprocess
import sys

WATCHED = """
import os
import sys

sys.addaudithook(lambda event, _: event in ("os.fork", "socket.connect") and os._exit(3))  # from whatever thread
import torch
from torch import nn

from arquant.engines.openvino import OpenVinoEngine
from arquant.models.classifier import Classifier

network = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
engine = OpenVinoEngine(Classifier(network, num_classes=3, input_shape=(3, 4, 4)), batch=2, input_kind="unit", threads=1)
engine.close()
import openvino_telemetry  # others may still have it
"""


def test_openvino_neither_reports_nor_forks() -> None:
    ended = subprocess.run([sys.executable, "-c", WATCHED], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
