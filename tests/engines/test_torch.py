import numpy as np
import torch
from torch import nn

from arquant.classifier import Classifier
from arquant.engines.torch import TorchEngine


def test_votes_are_those_of_the_frozen_network_even_while_it_is_trained() -> None:
    layers = [nn.Dropout(0.5), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 10)]
    torch.manual_seed(0)
    classifier = Classifier(nn.Sequential(*layers), num_classes=10, input_shape=(3, 4, 4))
    batch = np.random.default_rng(0).normal(size=(64, 3, 4, 4)).astype(np.float32)
    with torch.no_grad():
        wanted = classifier.eval()(torch.from_numpy(batch)).argmax(1).numpy()
    engine = TorchEngine(classifier, batch=64, input_kind="unit", compiled=False)
    fingerprint = classifier.fingerprint()
    for _ in range(2):
        classifier.train()
        np.testing.assert_array_equal(engine.labels_of(batch), wanted)
    assert classifier.fingerprint() == fingerprint, "BatchNorm has learnt from the votes"
    engine.close()
