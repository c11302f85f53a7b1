"""Certificates as tab-separated text: our rows, and those of the field's other tools.

The first six columns are Cohen's, `idx label predict radius correct time`; ours follow. Radii are written with 8
decimals rounded down, bounds exactly. In compatibility mode the radius has 3 decimals, also rounded down; the field's
tools round 3 significant digits to nearest, so that 1.9057 becomes 1.91, more than was certified.
"""

import re

from arquant.base.errors import FileFormatError, InputError
from arquant.certificates.certificate import Certificate
from arquant.certificates.rounding import round_down

FIELD_COLUMNS = ("idx", "label", "predict", "radius", "correct", "time")
OUR_COLUMNS = ("votes", "n", "p_lower", "p_upper", "stop", "select_votes", "n0", "counts")
HEADER = "\t".join(FIELD_COLUMNS + OUR_COLUMNS)
DECIMALS = 8
COMPAT_DECIMALS = 3

_REQUIRED = ("idx", "label", "predict", "radius", "correct")
_ALIASES = {"pA": "p_lower", "samplesize": "n", "time_forward": "time"}
_INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,18}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
_CLOCK = re.compile(r"(?:([0-9]{1,6}) days?, )?([0-9]{1,9}):([0-5][0-9]):([0-5][0-9](?:\.[0-9]{1,9})?)", re.ASCII)
_COUNTS = re.compile(r"[0-9]{1,9}:[0-9]{1,18}(?:,[0-9]{1,9}:[0-9]{1,18})*", re.ASCII)


def format_row(certificate: Certificate, *, compat: bool = False) -> str:
    """Return the certificate's line, without a line end."""
    return "\t".join(
        [
            str(certificate.idx),
            str(certificate.label),
            str(certificate.predict),
            round_down(certificate.radius, COMPAT_DECIMALS if compat else DECIMALS),
            str(int(certificate.correct)),
            format_time(certificate.seconds),
            str(certificate.votes),
            str(certificate.n),
            _exact(certificate.p_lower),
            _exact(certificate.p_upper),
            certificate.stop,
            str(certificate.select_votes),
            str(certificate.n0),
            ",".join(f"{label}:{votes}" for label, votes in certificate.counts),
        ]
    )


def format_time(seconds: float) -> str:
    """Return seconds as H:MM:SS.ffffff."""
    micros = round(seconds * 1_000_000)
    minutes, rest = divmod(micros, 60_000_000)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest // 1_000_000:02d}.{rest % 1_000_000:06d}"


def parse_time(text: str) -> float:
    """Return seconds from H:MM:SS.ffffff (with days, as Python writes them) or from plain seconds."""
    if clock := _CLOCK.fullmatch(text):
        days, hours, minutes, seconds = clock.groups()
        return ((int(days or 0) * 24 + int(hours)) * 60 + int(minutes)) * 60 + float(seconds)
    return _number(text)


def parse_table(text: str, where: str) -> tuple[list[Certificate], list[str]]:
    """Return the certificates in a file's text, and warnings about lines that were ignored.

    Columns are found by name, in any order; unknown ones are ignored. Lines after the last one that starts with an
    integer are ignored with a warning (some tools append summaries). Anything else that is no row raises
    FileFormatError with its line number.
    """
    lines = [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n")]
    columns = _parse_header(lines[0], where)
    rows = [number for number, line in enumerate(lines) if number and _INTEGER.fullmatch(line.split("\t", 1)[0])]
    last = rows[-1] if rows else 0
    certificates: list[Certificate] = []
    seen: dict[int, int] = {}
    for number in range(1, last + 1):
        place = f"{where}, line {number + 1}"
        certificate = _parse_row(lines[number], columns, place)
        if certificate.idx in seen:
            raise FileFormatError(f"{place}: image {certificate.idx} already has a row in line {seen[certificate.idx]}")
        seen[certificate.idx] = number + 1
        certificates.append(certificate)
    ignored = [number + 1 for number in range(last + 1, len(lines)) if lines[number].strip()]
    if not ignored:
        return certificates, []
    return certificates, [f"{where}: ignored {len(ignored)} line(s) after the last row, from line {ignored[0]} on"]


def _parse_header(line: str, where: str) -> list[str]:
    columns = [_ALIASES.get(name.strip(), name.strip()) for name in line.split("\t")]
    missing = [name for name in _REQUIRED if name not in columns]
    if missing:
        raise FileFormatError(
            f"{where}, line 1: no column {', '.join(missing)}; a certificate file starts with the tab-separated header "
            f"{' '.join(FIELD_COLUMNS)}"
        )
    known = [name for name in columns if name in FIELD_COLUMNS + OUR_COLUMNS]
    if len(known) != len(set(known)):
        raise FileFormatError(f"{where}, line 1: a column appears twice")
    return columns


def _parse_row(line: str, columns: list[str], place: str) -> Certificate:
    fields = [field.strip() for field in line.split("\t")]
    if len(fields) != len(columns):
        raise FileFormatError(f"{place}: {len(fields)} fields where the header has {len(columns)}")
    row = dict(zip(columns, fields, strict=True))
    try:
        certificate = Certificate(
            idx=_integer(row["idx"]),
            label=_integer(row["label"]),
            predict=_integer(row["predict"]),
            radius=_number(row["radius"]),
            seconds=parse_time(row["time"]) if row.get("time") else 0.0,
            votes=_integer(row.get("votes") or "0"),
            n=_integer(row.get("n") or "0"),
            p_lower=_number(row["p_lower"]) if row.get("p_lower") else None,
            p_upper=_number(row["p_upper"]) if row.get("p_upper") else None,
            counts=_counts(row.get("counts", "")),
            select_votes=_integer(row.get("select_votes") or "0"),
            n0=_integer(row.get("n0") or "0"),
            stop=row.get("stop") or "fixed",
        )
    except InputError as error:
        raise FileFormatError(f"{place}: {error}") from None
    counted = sum(votes for _, votes in certificate.counts)
    if "counts" in row and counted != certificate.n:
        raise FileFormatError(f"{place}: the counts add up to {counted} votes where n is {certificate.n}")
    if row["correct"] != str(int(certificate.correct)):
        raise FileFormatError(
            f"{place}: correct is {row['correct']!r} where label {certificate.label} and predict {certificate.predict} "
            f"make it {int(certificate.correct)}"
        )
    return certificate


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise InputError(f"{text[:40]!r} is no integer")
    return int(text)


def _number(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise InputError(f"{text[:40]!r} is no number")
    return float(text)


def _counts(text: str) -> tuple[tuple[int, int], ...]:
    if not text:
        return ()
    if not _COUNTS.fullmatch(text):
        raise InputError(f"{text[:40]!r} is no list of class:votes")
    pairs = [pair.split(":") for pair in text.split(",")]
    return tuple((int(label), int(votes)) for label, votes in pairs)


def _exact(value: float | None) -> str:
    return "" if value is None else repr(float(value))
