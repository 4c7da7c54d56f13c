"""MSCCL XML as a program. Entities are refused, and the size is limited."""

import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from flowccl.errors import FileError
from flowccl.export.proof.program import Cell, Operand, Operation, RuntimeProgram
from flowccl.files import read_bytes
from flowccl.runtimes.limits import FIFO, PROTOCOLS, XML_LIMITS, RuntimeLimits

MAX_XML_BYTES = 64_000_000

_TAG = re.compile(r"<[^>]*>")
_SIDES = {  # receives, reduces with its own data, stores, sends
    "s": (False, False, False, True),
    "r": (True, False, True, False),
    "rcs": (True, False, True, True),
    "rrs": (True, True, False, True),
    "rrc": (True, True, True, False),
    "rrcs": (True, True, True, True),
    "nop": (False, False, False, False),
}


def read_xml(path: str | Path, dialect: str) -> RuntimeProgram:
    """Return the program in an MSCCL XML file; raise FileError if the file is not one."""
    return parse_xml(read_bytes(Path(path), MAX_XML_BYTES), str(path), dialect)


def parse_xml(data: bytes, name: str, dialect: str) -> RuntimeProgram:
    """Return the program in the text of an MSCCL XML file."""
    limits = XML_LIMITS[dialect]
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError as error:
        raise FileError(f"{name}: not an MSCCL XML file: byte {error.start} is not plain text") from None
    if re.search(r"<!(?!--)", text):
        raise FileError(f"{name}: contains a document type or entities (<!), which are refused")
    try:
        algo = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise FileError(f"{name}: not XML: {error}") from None
    if algo.tag != "algo":
        raise FileError(f"{name}: not an MSCCL XML file: the root is <{algo.tag[:40]}>, must be <algo>")
    try:
        program = _XmlReader(algo, limits).program
    except _XmlError as error:
        raise FileError(f"{name}: {error}") from None
    _check_text(program, text)
    return program


class _XmlError(Exception):
    """A part of the file is missing or malformed."""


def _check_text(program: RuntimeProgram, text: str) -> None:
    """Check the text for XML syntax that the loaders do not support."""
    if "<?" in text:
        program.found("format", "the loaders reject an XML declaration (<?xml ...?>)")
    if "\t" in text:
        program.found("format", "the loaders reject tab characters")
    for tag in _TAG.findall(re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)):
        if "\n" in tag or "'" in tag:
            what = "a line break inside a tag" if "\n" in tag else "single quotes"
            program.found("format", f"the loaders reject {what}: {tag[:60]!r}")
            return


def _text(element: ElementTree.Element, attribute: str, where: str) -> str:
    value = element.get(attribute)
    if value is None:
        raise _XmlError(f"{where}: attribute {attribute} is missing")
    return value


def _number(element: ElementTree.Element, attribute: str, where: str, low: int = 0, high: int = 2**31 - 1) -> int:
    text = _text(element, attribute, where)
    if not re.fullmatch(r"-?[0-9]{1,18}", text) or not low <= int(text) <= high:
        raise _XmlError(f"{where}: {attribute} must be a whole number, {low} to {high}, got {text[:40]!r}")
    return int(text)


def _choice(element: ElementTree.Element, attribute: str, where: str, choices: tuple[str, ...]) -> str:
    text = _text(element, attribute, where)
    if text not in choices:
        raise _XmlError(f"{where}: {attribute} must be one of {', '.join(choices)}, got {text[:40]!r}")
    return text


class _XmlReader:
    """Converts the elements to a program."""

    def __init__(self, algo: ElementTree.Element, limits: RuntimeLimits) -> None:
        self.limits = limits
        ours = {theirs: name for name, theirs in limits.collectives.items()}
        protocol = _choice(algo, "proto", "algo", PROTOCOLS)
        needed = limits.target != "msccl"
        inplace = _number(algo, "inplace", "algo", 0, 1)
        outofplace = _number(algo, "outofplace", "algo", 0, 1) if needed else 1 - inplace
        if not inplace and not outofplace:
            raise _XmlError("algo: inplace and outofplace are both 0, so no call uses the file")
        self.operations: list[Operation] = []
        self.program = RuntimeProgram(
            ours[_choice(algo, "coll", "algo", tuple(ours))],
            _number(algo, "ngpus", "algo", 1, 2**16),
            tuple(mode for mode, used in ((False, outofplace), (True, inplace)) if used),
            _number(algo, "nchunksperloop", "algo", 1),
            [],
            self.operations,
            FIFO[protocol],
        )
        for name in ("minBytes", "maxBytes"):
            if needed or algo.get(name) is not None:
                _number(algo, name, "algo", 0, 2**62)
        self.program.min_bytes = int(algo.get("minBytes", 0))
        self.program.max_bytes = int(algo.get("maxBytes", 0))
        channels = _number(algo, "nchannels", "algo", 1)
        self._limit("channels", channels, limits.channels, "algo")
        if limits.target == "msccl":
            _text(algo, "name", "algo")
        self._limit("attributes", len(algo.attrib), 16, "algo")
        gpus = list(algo.iter("gpu"))
        ids = [_number(gpu, "id", "gpu", 0) for gpu in gpus]
        if ids != list(range(self.program.num_gpus)):
            raise _XmlError(f"the gpus must be 0 to {self.program.num_gpus - 1} in order, got {str(ids[:10])[:60]}")
        for rank, gpu in enumerate(gpus):
            self._gpu(gpu, rank, len(gpus), channels)

    def _limit(self, name: str, need: int, most: int, where: str) -> None:
        if need > most:
            self.program.found("limit", f"{where}: {name}: {need}, but {self.limits.target} allows at most {most}")

    def _gpu(self, gpu: ElementTree.Element, rank: int, gpus: int, channels: int) -> None:
        where = f"gpu {rank}"
        counts = [_number(gpu, name, where) for name in ("i_chunks", "o_chunks", "s_chunks")]
        self.program.counts.append((counts[0], counts[1], counts[2]))
        for count in counts:
            self._limit("chunks of a buffer", count, self.limits.index, where)
        blocks = list(gpu.iter("tb"))
        self._limit("threadblocks per gpu", len(blocks), self.limits.blocks, where)
        self._limit("children of a node", len(blocks), self.limits.children, where)
        steps = 0
        used: Counter[tuple[str, int, int]] = Counter()
        for number, block in enumerate(blocks):
            if _number(block, "id", where) != number:
                raise _XmlError(f"{where}: threadblock ids must be 0, 1, 2 ... in order, got {block.get('id')!r}")
            steps += self._block(block, rank, number, channels, used)
        self._limit("XML nodes", 1 + gpus + len(blocks) + steps, self.limits.nodes, where)
        for (direction, peer, channel), times in used.items():
            if times > 1:
                words = f"{where}: {times} threadblocks {direction} gpu {peer} on channel {channel}; only one may"
                self.program.found("connection", words)
        for direction in ("send to", "receive from"):
            per_channel = Counter(channel for w, _, channel in used if w == direction)
            most = max(per_channel.values(), default=0)
            name = f"threadblocks that {direction.split()[0]} per channel"
            self._limit(name, most, self.limits.blocks_per_channel, where)

    def _block(
        self, block: ElementTree.Element, rank: int, number: int, channels: int, used: Counter[tuple[str, int, int]]
    ) -> int:
        where = f"gpu {rank} threadblock {number}"
        channel = _number(block, "chan", where, 0, channels - 1)
        peers = []
        for name, direction in (("send", "send to"), ("recv", "receive from")):
            peer = _number(block, name, where, -1, self.program.num_gpus - 1)
            if peer == rank:
                raise _XmlError(f"{where}: {name} must be another gpu, got itself")
            if peer >= 0:
                used[direction, peer, channel] += 1
            peers.append(peer)
        steps = list(block.iter("step"))
        self._limit("steps per threadblock", len(steps), self.limits.steps, where)
        chain = False
        for index, step in enumerate(steps):
            chain = self._step(step, rank, number, index, (peers[0], peers[1], channel), chain)
        if chain:
            raise _XmlError(f"{where}: ends with a nop; the loaders require a step with a dependency after it")
        return len(steps)

    def _step(
        self,
        step: ElementTree.Element,
        rank: int,
        block: int,
        index: int,
        peers: tuple[int, int, int],
        chain: bool,
    ) -> bool:
        where = f"gpu {rank} threadblock {block} step {index}"
        kind = _choice(step, "type", where, ("s", "r", "rcs", "rrs", "rrc", "rrcs", "cpy", "re", "nop"))
        if kind not in self.limits.instructions:
            self.program.found("limit", f"{where}: {self.limits.target} has no instruction {kind}")
        self._limit("step number", _number(step, "s", where), self.limits.steps - 1, where)
        low = -1 if kind == "nop" else 0
        src = (rank, _choice(step, "srcbuf", where, ("i", "o", "s")), _number(step, "srcoff", where, low))
        dst = (rank, _choice(step, "dstbuf", where, ("i", "o", "s")), _number(step, "dstoff", where, low))
        count = _number(step, "cnt", where, 0 if kind == "nop" else 1)
        self._limit("chunks per step", count, self.limits.count, where)
        operation = Operation(rank, block, index, kind)
        waits = _number(step, "depid", where, -1), _number(step, "deps", where, -1)
        has_wait = waits[0] >= 0
        if has_wait:
            self._limit("threadblock to wait for", waits[0], self.limits.waits - 1, where)
            operation.after.append(waits)
        if chain and not has_wait:
            raise _XmlError(f"{where}: follows a nop but has no dependency; the loaders reject such a chain")
        if _number(step, "hasdep", where, 0, 1) and kind != "nop":
            operation.is_published = True
        if kind in ("cpy", "re"):
            operation.assigns = _local(kind, src, dst, count)
        else:
            self._remote(operation, kind, src, dst, count, peers, where)
        self.operations.append(operation)
        return kind == "nop"

    def _remote(
        self,
        operation: Operation,
        kind: str,
        src: Cell,
        dst: Cell,
        count: int,
        peers: tuple[int, int, int],
        where: str,
    ) -> None:
        receives, adds, stores, sends = _SIDES[kind]
        send, recv, channel = peers
        for uses, peer, name in ((sends, send, "send"), (receives, recv, "recv")):
            if uses and peer < 0:
                raise _XmlError(f"{where}: {kind} needs a threadblock with {name}, but it has -1")
        if sends:
            operation.pushes.append(("fifo", operation.rank, send, channel))
            operation.sends_to = send
        if receives:
            operation.pops.append(("fifo", recv, operation.rank, channel))
        operation.size = count if sends or receives else 0
        for k in range(count if kind != "nop" else 0):
            came: tuple[Operand, ...] = (k,) if receives else ()
            value = (*came, _at(src, k)) if adds or not receives else came
            if stores:
                operation.assigns.append((_at(dst, k), value))
            if sends:
                operation.assigns.append((k, value))


def _at(cell: Cell, k: int) -> Cell:
    return cell[0], cell[1], cell[2] + k


def _local(kind: str, src: Cell, dst: Cell, count: int) -> list[tuple[Operand, tuple[Operand, ...]]]:
    if kind == "cpy":
        return [(_at(dst, k), (_at(src, k),)) for k in range(count)]
    return [(_at(dst, k), (_at(dst, k), _at(src, k))) for k in range(count)]
