#!/usr/bin/env python3
"""seeds.py FOLDER --build BUILD --trainctl TRAINCTL: writes small files of each format to FOLDER/fuzz_NAME, a corpus for each fuzzer of a
parser of data to start from. BUILD has image_seeds (build/fuzz/bin); TRAINCTL writes the indices of tar files."""

import argparse
import gzip
import io
import pathlib
import struct
import subprocess
import tarfile
import tempfile
import wave
import zipfile


def tar(folder, options):
    for name, form in [("ustar", tarfile.USTAR_FORMAT), ("gnu", tarfile.GNU_FORMAT), ("pax", tarfile.PAX_FORMAT)]:
        for length in [1, 150]:  # the longer one needs a header of its own, or a prefix
            at = folder / f"{name}_{length}.tar"
            with tarfile.open(at, "w", format=form) as out:
                for number in range(3):
                    for extension, body in [("cls", b"1"), ("txt", b"abc" * number), ("mask.png", b"x" * 520)]:
                        member = tarfile.TarInfo(("d/" * (length // 3))[:90] + "s" * min(length, 80) + f"{number}.{extension}")
                        member.size = len(body)
                        out.addfile(member, io.BytesIO(body))
            subprocess.run([options.trainctl, "data", "index", at], check=True, stdout=subprocess.DEVNULL)


def array(kind, shape, body, order="False"):
    head = f"{{'descr': '{kind}', 'fortran_order': {order}, 'shape': {shape}, }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + body


def npy(folder, _):
    arrays = [array("|u1", "(4, 2)", bytes(8)), array("<f4", "(3,)", bytes(12)), array("<i8", "(2, 1)", bytes(16)), array("<f2", "(5,)", bytes(10)),
              array("<f8", "()", bytes(8)), array("|b1", "(3,)", bytes(3)), array("<u2", "(2,)", bytes(4), "True")]
    for number, data in enumerate(arrays):
        (folder / f"{number}.npy").write_bytes(data)
    for way in [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]:
        with zipfile.ZipFile(folder / f"{way}.npz", "w", way) as out:
            for number, data in enumerate(arrays):
                out.writestr(f"x{number}.npy", data)


def csv(folder, _):
    for number, text in enumerate([",a,b\n1,2\n3,4\n", ';"a;b";c\r\n"x""y";1.5e-3\r\n', '\t"a\nb"\tc\n\n1\t\n', ',"open']):
        (folder / f"{number}").write_bytes(text.encode())


def idx(folder, _):
    for kind, size in [(8, 1), (9, 1), (11, 2), (12, 4), (13, 4), (14, 8)]:
        data = struct.pack(">BBBBII", 0, 0, kind, 2, 3, 2) + bytes(6 * size)
        (folder / f"{kind}").write_bytes(data)
        (folder / f"{kind}.gz").write_bytes(gzip.compress(data))


def tokens(folder, _):
    (folder / "raw").write_bytes(struct.pack("<6H", 1, 2, 3, 255, 256, 65535))
    for magic, version, kind in [(20240520, 1, "H"), (20240801, 7, "I")]:
        body = struct.pack(f"<4{kind}", 1, 2, 300, 65535)
        (folder / f"{magic}_empty").write_bytes(struct.pack("<256i", magic, version, 0, *[0] * 253))
        (folder / f"{magic}").write_bytes(struct.pack("<256i", magic, version, 4, *[0] * 253) + body)


def image(folder, options):
    subprocess.run([options.build / "image_seeds", folder], check=True)


def safetensors(folder, _):
    for number, text in enumerate(['{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', '{"__metadata__":{"k":"v"},"b":{"dtype":"BF16","shape":[],"data_offsets":[0,2]}}',
                                   '{"a":{"dtype":"U8","shape":[0,3],"data_offsets":[0,0]},"\\u00e9":{"dtype":"I64","shape":[1,1],"data_offsets":[0,8]}}']):
        head = text.encode() + b" " * (-len(text) % 8)
        for zeros in [0, 2, 8]:  # the first byte is the number of zero bytes behind the header
            (folder / f"{number}_{zeros}").write_bytes(bytes([zeros]) + struct.pack("<Q", len(head)) + head)


def tokenizer(folder, _):
    """tokenizer.json, a zero byte, a text."""
    models = ['{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"<0x0A>":3,"\\u2581":4,"<unk>":5},"merges":["a b"],"unk_token":"<unk>","fuse_unk":true,"byte_fallback":true}',
              '{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["a",-1.5],["ab",-2],["\\u2581",-3]]}',
              '{"type":"WordPiece","unk_token":"u","vocab":{"u":0,"a":1,"##b":2}}', '{"type":"WordLevel","unk_token":"u","vocab":{"u":0,"ab":1}}']
    parts = ['"normalizer":{"type":"Sequence","normalizers":[{"type":"NFKC"},{"type":"Replace","pattern":{"Regex":" {2,}"},"content":" "},{"type":"BertNormalizer"}]}',
             '"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"String":"b"},"behavior":"MergedWithNext"},{"type":"ByteLevel"}]}',
             '"pre_tokenizer":{"type":"Metaspace","prepend_scheme":"first"},"decoder":{"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]}',
             '"post_processor":{"type":"BertProcessing","sep":["b",1],"cls":["a",0]},"decoder":{"type":"WordPiece"},"pre_tokenizer":{"type":"Whitespace"}']
    for m, model in enumerate(models):
        for p, part in enumerate(parts):
            added = '"added_tokens":[{"content":"<x>","lstrip":true,"single_word":true,"normalized":true}]'
            (folder / f"{m}_{p}").write_bytes(f'{{"model":{model},{part},{added}}}\0ab <x> ba\nÄ'.encode())


def template(folder, _):
    for number, text in enumerate(["{% for m in messages if m.role != 'x' %}{{ loop.index ~ m['content'] | trim }}{% else %}-{% endfor %}",
                                   "{%- set ns = namespace(a=1) -%}{% set ns.a = ns.a + 2 %}{{ ns.a // 2 if ns.a is odd else 'b'[::-1] }}",
                                   "{% macro f(x, y='z') %}{{ x | tojson(indent=2) }}{% endmacro %}{{ f({'a': [1, 2.5, none]}) }}{# c #}",
                                   "{% generation %}{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(', ') }}{% endgeneration %}"]):
        (folder / f"{number}").write_bytes(text.encode())


def tables(folder, options):
    """The first byte is the format's place in fuzz_tables.cpp, the next two the size of the first file."""
    def seed(name, form, first, second=b""):
        (folder / name).write_bytes(bytes([form]) + struct.pack("<H", len(first) if second else 0) + first + second)

    rows = b'{"a": 1, "b": [1.5, 2], "c": "x", "d": {"e": null}}\n{"a": null, "b": [1], "c": "y"}\n'
    seed("jsonl", 0, rows)
    seed("gzip", 3, gzip.compress(rows))
    # A frame of zstd with one raw block, and no checksum.
    seed("zstd", 4, b"\x28\xb5\x2f\xfd\x20" + bytes([len(rows)]) + struct.pack("<I", len(rows) << 3 | 1)[:3] + rows)

    def crc(data):
        value = 0xFFFFFFFF
        for byte in data:
            value ^= byte
            for _ in range(8):
                value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        value ^= 0xFFFFFFFF
        return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    def field(number, data):
        return bytes([number << 3 | 2, len(data)]) + data

    features = [("id", field(3, field(1, b"\x05\xac\x02"))), ("f", field(2, field(1, struct.pack("<2f", 1, 2)))), ("t", field(1, field(1, b"text")))]
    example = field(1, b"".join(field(1, field(1, name.encode()) + field(2, value)) for name, value in features))
    length = struct.pack("<Q", len(example))
    records = (length + crc(length) + example + crc(example)) * 2
    seed("tfrecord", 1, records)
    seed("tfrecord_gz", 8, gzip.compress(records))
    shard_head = struct.pack("<4I", 2, 16, 33, 50)
    sample = struct.pack("<I", 1) + struct.pack("<q", 7) + b"x" + struct.pack("<f", 1.5)
    index = ('{"version": 2, "shards": [{"version": 2, "format": "mds", "samples": 2, "compression": null, "column_names": ["n", "t", "g"], '
             '"column_encodings": ["int", "str", "ndarray:float32:1"], "column_sizes": [8, null, 4], "hashes": [], '
             f'"raw_data": {{"basename": "shard.00000.mds", "bytes": {len(shard_head) + 2 * len(sample)}, "hashes": {{}}}}, "zip_data": null}}]}}').encode()
    seed("mds", 5, index, shard_head + sample * 2)
    lengths, places, documents = struct.pack("<2i", 2, 3), struct.pack("<2q", 0, 4), struct.pack("<3q", 0, 1, 2)
    seed("megatron", 6, b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 2, 3) + lengths + places + documents, struct.pack("<5H", *range(5)))
    page = 4096

    def meta(number, transaction):
        databases = struct.pack("<IHH5Q", page, 0, 0, 0, 0, 0, 0, 2**64 - 1) + struct.pack("<IHH5Q", 0, 0, 1, 0, 1, 0, 2, 2)
        body = struct.pack("<QHHHH", number, 0, 8, 0, 0) + struct.pack("<IIQQ", 0xBEEFC0DE, 1, 0, 1 << 20) + databases + struct.pack("<QQ", 2, transaction)
        return body + bytes(page - len(body))

    nodes = [struct.pack("<HHHH", len(value), 0, 0, len(key)) + key + value for key, value in [(b"a-1", b"x"), (b"b-1", b"yy")]]
    leaf = struct.pack("<QHHHH", 2, 0, 2, 20, 64) + struct.pack("<HH", 64, 128)
    leaf = leaf + bytes(64 - len(leaf)) + nodes[0] + bytes(64 - len(nodes[0])) + nodes[1]
    seed("lmdb", 2, meta(0, 1) + meta(1, 2) + leaf + bytes(page - len(leaf)))
    seed("mds_gz", 13, index.replace(b"00000.mds", b"00000.mds.gz").replace(b'"zip_data": null', b'"zip_data": {"basename": "shard.00000.mds.gz", "bytes": 1, "hashes": {}}')
         .replace(b'"compression": null', b'"compression": "gz"').replace(b'"raw_data": {"basename": "shard.00000.mds.gz"', b'"raw_data": {"basename": "shard.00000.raw"'),
         gzip.compress(shard_head + sample * 2))
    for number, path in enumerate(sorted((pathlib.Path(__file__).parent / "corpus").glob("*.h5"))):
        seed(f"hdf5_{number}", 11, path.read_bytes())
    # Other formats are written by trainctl. Without Arrow's library those of Arrow have no seeds.
    with tempfile.TemporaryDirectory() as scratch:
        lines = pathlib.Path(scratch) / "t.jsonl"
        lines.write_text("".join(f'{{"a": {i}, "b": [{i}.5, 2], "c": "x{i % 3}"}}\n' for i in range(20)))
        written = {}
        for name, form in {"t.h5": 11, "t.parquet": 9, "t.arrow": 10, "t.feather": 12, "state.json": 14}.items():
            to = pathlib.Path(scratch) / name.replace("feather", "arrow")
            done = subprocess.run([options.trainctl, "data", "convert", lines, "-o", to, "--force"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if done.returncode == 0:
                written[name] = form, to.read_bytes()
        for name, (form, content) in written.items():
            if name == "state.json":
                shard = (pathlib.Path(scratch) / "data-00000-of-00001.arrow").read_bytes()
                seed(name, form, content.replace(b"data-00000-of-00001.arrow", b"t.arrow"), shard)
                seed("stream", 10, shard)
            else:
                seed(name, form, content)


def sound(folder, _):
    for number, (width, channels, rate) in enumerate([(2, 1, 8000), (1, 2, 16000), (3, 1, 44100)]):
        with wave.open(str(folder / f"{number}.wav"), "wb") as out:
            out.setnchannels(channels)
            out.setsampwidth(width)
            out.setframerate(rate)
            out.writeframes(bytes(range(240)))
    for path in (pathlib.Path(__file__).parent / "corpus").glob("*.flac"):
        (folder / path.name).write_bytes(path.read_bytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--trainctl", type=pathlib.Path, required=True)
    options = parser.parse_args()
    for make in [tar, npy, csv, idx, tokens, image, safetensors, tokenizer, template, tables, sound]:
        folder = options.folder / f"fuzz_{make.__name__}"
        folder.mkdir(parents=True, exist_ok=True)
        make(folder, options)
        print(f"{folder}: {len(list(folder.iterdir()))} files")


main()
