"""Files in one move, and the envelope that says what they are."""

import pytest

from arquant.base.errors import FileFormatError, InputError
from arquant.base.files import envelope, opened, read_json, write_json


def test_an_envelope_opens_for_its_schema_and_version_only(tmp_path):
    path = tmp_path / "it.json"
    write_json(path, envelope("arquant.it", 1, {"value": 7}))
    assert read_json(path, "arquant.it", 1) == {"value": 7}
    with pytest.raises(FileFormatError, match=r"version 1 of arquant.it; this arquant reads 2"):
        read_json(path, "arquant.it", 2)
    with pytest.raises(FileFormatError, match=r'"schema": "arquant.other"'):
        read_json(path, "arquant.other", 1)
    for damaged in ("[1, 2]", "{"):
        path.write_text(damaged)
        with pytest.raises(FileFormatError, match=r"it\.json"):
            read_json(path, "arquant.it", 1)
    with pytest.raises(InputError, match="cannot read"):
        read_json(tmp_path / "gone.json", "arquant.it", 1)
    assert opened(envelope("s", "1", {}), "s", "1", "header") == {}
