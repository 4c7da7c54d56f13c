"""The part of the protobuf wire format that traces use: fields with numbers, text and messages."""

from flowccl.errors import FileError

NUMBER, EIGHT, BYTES, FOUR = 0, 1, 2, 5  # wire types
_LONGEST = 10  # bytes of a varint


def varint(value: int) -> bytes:
    """Encode a natural number with 7 bits per byte, lowest bits first."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def number_field(field: int, value: int) -> bytes:
    """Encode a field with a number."""
    return varint(field << 3 | NUMBER) + varint(value)


def bytes_field(field: int, value: bytes) -> bytes:
    """Encode a field with text or a message."""
    return varint(field << 3 | BYTES) + delimited(value)


def delimited(message: bytes) -> bytes:
    """Prefix a message with its length."""
    return varint(len(message)) + message


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at an offset, and the offset after it."""
    value = 0
    for k, byte in enumerate(data[at : at + _LONGEST]):
        value |= (byte & 0x7F) << (7 * k)
        if not byte & 0x80:
            return value, at + k + 1
    raise FileError(f"the number at byte {at} does not end")


def read_delimited(data: bytes) -> list[bytes]:
    """Return all messages of a stream of length-prefixed messages."""
    at, messages = 0, []
    while at < len(data):
        size, at = read_varint(data, at)
        if at + size > len(data):
            raise FileError(f"a message of {size} bytes begins at byte {at}, but the file has only {len(data)} bytes")
        messages.append(data[at : at + size])
        at += size
    return messages


def read_fields(message: bytes) -> list[tuple[int, int | bytes]]:
    """Return all fields of a message in order: (field, number or bytes)."""
    at, found = 0, list[tuple[int, int | bytes]]()
    while at < len(message):
        key, at = read_varint(message, at)
        kind, value = key & 7, 0
        if kind == NUMBER:
            value, at = read_varint(message, at)
            found.append((key >> 3, value))
            continue
        if kind == BYTES:
            size, at = read_varint(message, at)
        elif kind in (EIGHT, FOUR):
            size = 8 if kind == EIGHT else 4
        else:
            raise FileError(f"field {key >> 3} has the unknown wire type {kind}")
        if at + size > len(message):
            raise FileError(f"field {key >> 3} has {size} bytes, but its message is shorter")
        found.append((key >> 3, message[at : at + size]))
        at += size
    return found


def read_numbers(value: int | bytes) -> list[int]:
    """Return the numbers of a repeated field, packed or not."""
    if isinstance(value, int):
        return [value]
    at, numbers = 0, []
    while at < len(value):
        number, at = read_varint(value, at)
        numbers.append(number)
    return numbers
