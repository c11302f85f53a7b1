"""How votes are computed."""

from arquant.engines.base import Engine as Engine
from arquant.engines.base import InputKind as InputKind
