#!/usr/bin/env python3
"""tables_test.py TRAINCTL: files of tables that each format's own Python package writes are read with the values that the package reads, are
converted to the other formats, and damaged files are errors. Runs in the environment of ./bootstrap peers if there is one. Exits with 77 if a case is
left out because its package is missing, and the others pass."""
import gzip
import importlib
import importlib.util
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import traceback

SKIPPED = 77
ROWS = 250
# A damaged file may be read, be an error of the file (3) or of the command line (2), but never end the program otherwise.
ALLOWED = {0, 2, 3}


class Missing(Exception):
    pass


def need(*names):
    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as error:
        raise Missing(str(error)) from error


class Trainctl:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def run(self, *words, code=0):
        done = subprocess.run([self.program, *map(str, words)], capture_output=True, text=True, errors="replace", timeout=300, check=False)
        if done.returncode != code:
            raise AssertionError(f"{words}: exit code {done.returncode}, expected {code}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def convert(self, *inputs, to, columns=None, code=0):
        words = ["data", "convert", *inputs, "-o", to, "--force"]
        return self.run(*words, *(["--columns", ",".join(columns)] if columns else []), code=code)

    def rows(self, *inputs, columns=None):
        to = self.folder / "rows.jsonl"
        self.convert(*inputs, to=to, columns=columns)
        return [json.loads(line) for line in to.read_text().splitlines()]


def close(found, expected):
    if isinstance(expected, float) or isinstance(found, float):
        return math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-12)
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(close(found[key], expected[key]) for key in expected)
    if isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(map(close, found, expected))
    return found == expected


def same(found, expected, what):
    assert len(found) == len(expected), f"{what}: {len(found)} rows, expected {len(expected)}"
    for number, (a, b) in enumerate(zip(found, expected)):
        assert close(a, b), f"{what}: row {number}: {a}, expected {b}"


def damaged(trainctl, path, what):
    """The file, shortened and with changed bytes, never crashes the program."""
    whole = path.read_bytes()
    places = [len(whole) * part // 7 for part in range(7)] + [len(whole) - 1]
    for place in places:
        for changed in [whole[:place], whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1:]]:
            path.write_bytes(changed)
            done = subprocess.run([trainctl.program, "data", "convert", str(path), "-o", str(trainctl.folder / "x.jsonl"), "--force"],
                                  capture_output=True, text=True, errors="replace", timeout=300, check=False)
            assert done.returncode in ALLOWED, f"{what}: damaged at byte {place}: exit code {done.returncode}\n{done.stderr}"
    path.write_bytes(whole)


def python_rows():
    return [{"id": i, "score": i / 7 - 3, "even": i % 2 == 0, "text": f"täxt {i}\n\"quoted\"", "list": [i, i + 1, i + 2],
             "maybe": None if i % 5 == 0 else f"m{i}", "nested": {"a": [i, {"b": None}]}} for i in range(ROWS)]


def json_lines(trainctl):
    folder = trainctl.folder
    rows = python_rows()
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "plain.jsonl").write_text(text)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    names = ["plain.jsonl", "a.jsonl.gz"]
    trainctl.convert(folder / "plain.jsonl", to=folder / "a.jsonl.zst")
    for name in [*names, "a.jsonl.zst"]:
        same(trainctl.rows(folder / name), rows, name)
    (folder / "deep.jsonl").write_text('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
    assert "nested too deeply" in trainctl.convert(folder / "deep.jsonl", to=folder / "x.jsonl", columns=["a"], code=3)
    (folder / "cut.jsonl.zst").write_bytes((folder / "a.jsonl.zst").read_bytes()[:-20])
    assert "truncated" in trainctl.convert(folder / "cut.jsonl.zst", to=folder / "x.jsonl", code=3)
    (folder / "cut.jsonl.gz").write_bytes((folder / "a.jsonl.gz").read_bytes()[:-20])
    assert "truncated" in trainctl.convert(folder / "cut.jsonl.gz", to=folder / "x.jsonl", code=3)
    (folder / "bomb.jsonl.gz").write_bytes(gzip.compress(bytes(300 << 20), 1))
    assert "100 times" in trainctl.convert(folder / "bomb.jsonl.gz", to=folder / "x.jsonl", code=3)


def zstandard_package(trainctl):
    (zstandard,) = need("zstandard")
    path = trainctl.folder / "z.jsonl.zst"
    rows = python_rows()
    path.write_bytes(zstandard.ZstdCompressor().compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    same(trainctl.rows(path), rows, "zstandard")


def arrow_table(pa, numpy):
    rng = numpy.random.default_rng(1)
    count = range(ROWS)
    return pa.table({
        "i8": pa.array([i % 100 - 50 for i in count], pa.int8()), "u16": pa.array([i * 200 for i in count], pa.uint16()),
        "u32": pa.array([i * 10_000_000 for i in count], pa.uint32()), "i64": pa.array([i << 40 for i in count], pa.int64()),
        "u64": pa.array([i << 40 for i in count], pa.uint64()), "f32": pa.array(rng.random(ROWS).astype("f4")), "f64": pa.array(rng.random(ROWS)),
        "yes": pa.array([None if i % 7 == 0 else i % 3 == 0 for i in count]), "text": pa.array([None if i % 7 == 0 else f"täxt {i}" for i in count]),
        "large": pa.array([f"l{i}" * (i % 4) for i in count], pa.large_string()), "fixed": pa.array([[i, i + 1, i + 2] for i in count], pa.list_(pa.int32(), 3)),
        "list": pa.array([None if i % 11 == 0 else list(range(i % 4)) for i in count], pa.list_(pa.int16())),
        "large_list": pa.array([[i / 2] * (i % 3) for i in count], pa.large_list(pa.float64())),
        "matrix": pa.array([[[1.5, i], [2, 3]] for i in count], pa.list_(pa.list_(pa.float32(), 2), 2)),
        "talk": pa.array([[{"role": "user", "content": f"x{i}"}] * (i % 3) for i in count]),
        "word": pa.array(["abc"[i % 3] for i in count]).dictionary_encode(), "day": pa.array(list(count), pa.date32()),
        "time": pa.array(list(count), pa.timestamp("us"))})


def expected_rows(table):
    rows = table.to_pylist()
    for number, row in enumerate(rows):
        if "day" in row:
            row["day"] = row["time"] = number
    return rows


def arrow(trainctl):
    pa, parquet, feather, numpy = need("pyarrow", "pyarrow.parquet", "pyarrow.feather", "numpy")
    folder = trainctl.folder
    table = arrow_table(pa, numpy)
    half = pa.array(numpy.arange(ROWS).astype("f2") / 4)
    parquet.write_table(table, folder / "snappy.parquet", row_group_size=60)
    parquet.write_table(table, folder / "zstd.parquet", compression="zstd", version="2.4", data_page_version="2.0", use_dictionary=False)
    wide = table.append_column("half", half).append_column("view", pa.array([f"short {i}" if i % 2 else "a longer text " * (i % 5) for i in range(ROWS)], pa.string_view()))
    feather.write_feather(wide, folder / "lz4.feather", chunksize=77)
    feather.write_feather(wide, folder / "plain.feather", compression="uncompressed")
    with pa.ipc.new_stream(folder / "stream.arrow", wide.schema) as writer:
        writer.write_table(wide, max_chunksize=33)
    with pa.ipc.new_file(folder / "sliced.arrow", wide.schema) as writer:
        for batch in wide.slice(3, 50).to_batches():
            writer.write_batch(batch)
    for name in ["snappy.parquet", "zstd.parquet"]:
        same(trainctl.rows(folder / name), expected_rows(table), name)
    for name in ["lz4.feather", "plain.feather", "stream.arrow"]:
        same(trainctl.rows(folder / name), expected_rows(wide), name)
    same(trainctl.rows(folder / "sliced.arrow", columns=["i64", "list", "text", "talk"]),
         wide.slice(3, 50).select(["i64", "list", "text", "talk"]).to_pylist(), "sliced.arrow")
    same(trainctl.rows(folder / "*.parquet"), expected_rows(table) * 2, "two files")
    # Other columns of a file are never decoded.
    same(trainctl.rows(folder / "snappy.parquet", columns=["f64"]), table.select(["f64"]).to_pylist(), "one column")
    info = trainctl.run("data", "info", folder / "snappy.parquet")
    for line in [f"{ROWS} rows", "matrix: f32 [2, 2]", "list: i16 [?]", "talk: nested", "word: text"]:
        assert line in info, info
    assert f"{ROWS} rows, 0 broken" in trainctl.run("data", "check", folder / "snappy.parquet")
    assert "matrix: [1.5, 0, 2, 3]" in trainctl.run("data", "show", folder / "snappy.parquet", "-n", "1")
    for name in ["snappy.parquet", "lz4.feather", "stream.arrow"]:
        damaged(trainctl, folder / name, name)
    # The written files have the same types and values.
    plain = [name for name in table.column_names if name not in ("talk", "day", "time")]
    for to in ["out.parquet", "out.arrow"]:
        trainctl.convert(folder / "snappy.parquet", to=folder / to, columns=plain)
        read = parquet.read_table(folder / to) if to.endswith("parquet") else feather.read_table(folder / to)
        same(read.to_pylist(), table.select(plain).to_pylist(), to)
        for name in ["i8", "u16", "u32", "i64", "f32", "f64", "yes"]:
            assert read.schema.field(name).type == table.schema.field(name).type, read.schema
    assert "nested" in trainctl.convert(folder / "snappy.parquet", to=folder / "out.parquet", columns=["talk"], code=3)
    trainctl.convert(folder / "snappy.parquet", to=folder / "out.npz", columns=["i64", "f32", "matrix"])
    arrays = numpy.load(folder / "out.npz")
    for name in ["i64", "f32", "matrix"]:
        assert (arrays[name] == numpy.array(table[name].to_pylist(), arrays[name].dtype)).all(), name
    assert arrays["matrix"].shape == (ROWS, 2, 2) and arrays["matrix"].dtype == numpy.float32
    same(trainctl.rows(folder / "out.npz"), table.select(["i64", "f32", "matrix"]).to_pylist(), "out.npz")
    assert "shape" in trainctl.convert(folder / "snappy.parquet", to=folder / "bad.npz", columns=["large_list"], code=3)
    assert not (folder / "bad.npz").exists()
    trainctl.convert(folder / "snappy.parquet", to=folder / "out.bin", columns=["large_list"], code=3)  # 0.5 is no token
    trainctl.convert(folder / "snappy.parquet", to=folder / "out.bin", columns=["fixed"])
    words = numpy.fromfile(folder / "out.bin", "<u2")
    assert (words[512:] == numpy.array(table["fixed"].to_pylist()).ravel()).all() and words[:2].view("<i4")[0] == 20240520
    without = {**os.environ, "TRAINCTL_ARROW": str(folder / "nothing")}
    done = subprocess.run([trainctl.program, "data", "info", folder / "snappy.parquet"], env=without, capture_output=True, text=True, check=False)
    assert done.returncode == 3 and "./bootstrap arrow" in done.stderr, done.stderr


def arrow_versions(trainctl):
    """Every version of the formats, compression and encoding that pyarrow writes."""
    pa, parquet, feather = need("pyarrow", "pyarrow.parquet", "pyarrow.feather")
    folder = trainctl.folder
    table = pa.table({"id": pa.array(range(ROWS), pa.int64()), "small": pa.array([i % 7 for i in range(ROWS)], pa.int32()),
                      "x": pa.array([i / 8 for i in range(ROWS)], pa.float32()), "text": pa.array([f"täxt {i % 30}" for i in range(ROWS)]),
                      "list": pa.array([list(range(i % 3)) for i in range(ROWS)], pa.list_(pa.int32()))})
    expected = table.to_pylist()
    ways = [{"version": version, "data_page_version": page, "compression": compression}
            for version in ["1.0", "2.4", "2.6"] for page in ["1.0", "2.0"] for compression in ["none", "snappy"]]
    ways += [{"compression": name} for name in ["gzip", "brotli", "lz4", "zstd"]]
    ways += [{"use_dictionary": False, "data_page_version": page, "column_encoding": encoding} for page in ["1.0", "2.0"] for encoding in [
        {"id": "DELTA_BINARY_PACKED", "x": "BYTE_STREAM_SPLIT", "text": "DELTA_BYTE_ARRAY"}, {"text": "DELTA_LENGTH_BYTE_ARRAY", "small": "PLAIN"}]]
    ways += [{"use_dictionary": ["text"], "store_schema": False, "write_statistics": False, "write_page_index": True, "data_page_size": 200},
             {"use_compliant_nested_type": False, "row_group_size": 1}, {"use_content_defined_chunking": True}]
    for number, way in enumerate(ways):
        try:
            parquet.write_table(table, folder / f"{number}.parquet", **way)
        except TypeError:  # an older pyarrow
            continue
        same(trainctl.rows(folder / f"{number}.parquet"), expected, str(way))
    for compression in ["uncompressed", "lz4", "zstd"]:
        feather.write_feather(table, folder / f"{compression}.feather", compression=compression, chunksize=50)
        same(trainctl.rows(folder / f"{compression}.feather"), expected, compression)
    for version in [pa.ipc.MetadataVersion.V4, pa.ipc.MetadataVersion.V5]:
        for make, name in [(pa.ipc.new_file, "file"), (pa.ipc.new_stream, "stream")]:
            with make(folder / f"{name}.arrow", table.schema, options=pa.ipc.IpcWriteOptions(metadata_version=version)) as writer:
                writer.write_table(table)
            same(trainctl.rows(folder / f"{name}.arrow"), expected, f"{name} {version}")


def hdf5_values(h5py, numpy, file):
    """Datasets of all kinds with ROWS rows."""
    rng = numpy.random.default_rng(3)
    for kind in ["i1", "u1", "<i2", ">i2", "<u2", "<i4", ">u4", "<i8", ">i8", "<u8", "<f2", "<f4", ">f4", "<f8", ">f8"]:
        numbers = rng.integers(0, 100, ROWS) if kind[-2] != "f" else rng.random(ROWS)
        file.create_dataset(f"kinds/{kind[-2:]}{'big' if kind[0] == '>' else ''}", data=numbers.astype(kind))
    file["yes"] = numpy.arange(ROWS) % 3 == 0
    file["fixed"] = numpy.array([f"t{i}" * (i % 3) for i in range(ROWS)], "S8")
    file.create_dataset("text", data=[f"täxt {i}" * (i % 4) for i in range(ROWS)], dtype=h5py.string_dtype())
    lists = file.create_dataset("lists", (ROWS,), dtype=h5py.vlen_dtype("<i4"))
    for i in range(ROWS):
        lists[i] = list(range(i % 5))
    matrix = rng.random((ROWS, 3, 5)).astype("f4")
    file["matrix"] = matrix
    for name, options in {"gzip": {"chunks": (16, 2, 5), "compression": "gzip"}, "shuffled": {"chunks": (7, 3, 2), "compression": "gzip", "shuffle": True},
                          "checked": {"chunks": (50, 3, 5), "fletcher32": True}, "lzf": {"chunks": (9, 3, 5), "compression": "lzf", "shuffle": True},
                          "all": {"chunks": True, "compression": "gzip", "shuffle": True, "fletcher32": True}, "plain_chunks": {"chunks": (11, 1, 4)}}.items():
        file.create_dataset(f"chunked/{name}", data=matrix, **options)
    part = file.create_dataset("part", (ROWS, 4), "i4", chunks=(10, 4), fillvalue=7)
    part[20:35] = numpy.arange(60).reshape(15, 4)
    file.create_dataset("empty", (ROWS,), "f4", fillvalue=2.5)
    file.create_dataset("compound", data=numpy.array([(i, i / 4, f"c{i}", [i, 2]) for i in range(ROWS)],
                                                     [("a", "<i4"), ("b", "<f8"), ("c", "S4"), ("d", "<i2", (2,))]))
    colors = h5py.enum_dtype({"red": 0, "green": 1}, basetype="i1")
    file.create_dataset("color", data=numpy.arange(ROWS) % 2, dtype=colors)
    file["committed"] = numpy.dtype("f4")
    file.create_dataset("of_committed", data=numpy.arange(ROWS, dtype="f4"), dtype=file["committed"])
    file["scalar"] = 5
    file["link"] = h5py.SoftLink("/matrix")


def hdf5_expected(h5py, numpy, path):
    columns = {}

    def plain(value):
        if isinstance(value, bytes):
            return value.decode()
        return value.tolist() if hasattr(value, "tolist") else value

    def add(name, item):
        if not isinstance(item, h5py.Dataset) or item.ndim == 0:
            return
        values = item[()]
        if values.dtype.names:
            for member in values.dtype.names:
                columns[f"{name}.{member}"] = [plain(value) for value in values[member]]
        else:
            columns[name] = [plain(value) for value in values]
    with h5py.File(path) as file:
        file.visititems(add)
    return [{name: values[i] for name, values in columns.items()} for i in range(ROWS)]


def hdf5(trainctl):
    h5py, numpy = need("h5py", "numpy")
    folder = trainctl.folder
    for name, options in {"old": {}, "v108": {"libver": ("v108", "v108")}, "new": {"libver": "latest"}, "block": {"userblock_size": 1024}}.items():
        path = folder / f"{name}.h5"
        with h5py.File(path, "w", **options) as file:
            if name in ("v108", "new"):  # groups with more than 8 links are stored in a heap
                matrix = numpy.random.default_rng(4).random((ROWS, 4)).astype("f4")
                file["a"] = matrix
                file.create_dataset("fixed_array", data=matrix, chunks=(9, 3), compression="gzip")
                file.create_dataset("paged", data=numpy.arange(ROWS * 40, dtype="i4").reshape(ROWS, 40), chunks=(1, 4))
                file.create_dataset("single", data=matrix, chunks=(ROWS, 4), compression="gzip", shuffle=True)
                file.create_dataset("group/text", data=[f"t{i}" for i in range(ROWS)], dtype=h5py.string_dtype())
            else:
                hdf5_values(h5py, numpy, file)
        expected = hdf5_expected(h5py, numpy, path)
        rows = trainctl.rows(path)
        same([{key: row[key] for key in expected[0]} for row in rows], expected, name)
        assert set(rows[0]) == set(expected[0]), set(rows[0]) ^ set(expected[0])
    info = trainctl.run("data", "info", folder / "old.h5")
    for line in [f"{ROWS} rows", "matrix: f32 [3, 5]", "color: i8; 2 classes: red, green", "yes: bool", "text: text", "lists: i32 [?]", "compound.d: i16 [2]"]:
        assert line in info, (line, info)
    assert f"{ROWS} rows, 0 broken" in trainctl.run("data", "check", folder / "old.h5")
    with h5py.File(folder / "bad.h5", "w", libver="latest") as file:
        file["a"] = numpy.arange(4.0)
        file["b"] = numpy.arange(3.0)
        layout = h5py.VirtualLayout((4,), "f8")
        layout[:] = h5py.VirtualSource(str(folder / "old.h5"), "matrix", (4,))
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset("grows", data=numpy.arange(4.0), maxshape=(None,), chunks=(2,))
        file.create_dataset("offsets", data=numpy.arange(4), chunks=(4,), scaleoffset=0)
    for column, text in {"virtual": "virtual dataset", "grows": "h5repack", "offsets": "filter 6",
                         "a,b": "but 'b' has 3"}.items():
        found = trainctl.convert(folder / "bad.h5", to=folder / "x.jsonl", columns=column.split(","), code=3)
        assert text in found, (column, found)
    with h5py.File(folder / "dense.h5", "w", libver="latest") as file:
        for i in range(20):
            file[f"d{i}"] = numpy.arange(3)
    assert "default libver" in trainctl.run("data", "info", folder / "dense.h5", code=3)
    whole = (folder / "old.h5").read_bytes()
    (folder / "old.h5").write_bytes(whole[:-100])
    assert "truncated" in trainctl.run("data", "info", folder / "old.h5", code=3)
    (folder / "old.h5").write_bytes(whole)
    for name in ["old.h5", "new.h5"]:
        damaged(trainctl, folder / name, name)
    crash = pathlib.Path(__file__).resolve().parents[2] / "fuzz/corpus/segfault_of_libhdf5.h5"
    assert "damaged HDF5 file" in trainctl.run("data", "check", crash, code=3)


def hugging_face(trainctl):
    datasets, _, numpy = need("datasets", "PIL.Image", "numpy")
    from PIL import Image
    folder = trainctl.folder
    datasets.disable_progress_bars()
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"]), "image": datasets.Image(),
                                  "grid": datasets.Array2D((2, 3), "float32"), "tokens": datasets.Sequence(datasets.Value("int32"))})
    images = [Image.fromarray(numpy.full((4, 5, 3), i * 9, numpy.uint8)) for i in range(20)]
    data = datasets.Dataset.from_dict({"text": [f"t{i}" for i in range(20)], "label": [i % 2 for i in range(20)], "image": images,
                                       "grid": [[[i, 1, 2], [3, 4, 5]] for i in range(20)], "tokens": [list(range(i)) for i in range(20)]}, features=features)
    data.save_to_disk(folder / "hf", num_shards=3)
    datasets.DatasetDict({"train": data, "test": data}).save_to_disk(folder / "dict")
    data.to_parquet(folder / "shards.parquet")
    columns = ["text", "label", "grid", "tokens"]
    expected = [{name: row[name] for name in columns} for row in data.remove_columns("image")]
    for path in ["hf", "dict/train", "shards.parquet"]:
        same(trainctl.rows(folder / path, columns=columns), expected, path)
    info = trainctl.run("data", "info", folder / "hf")
    assert "label: i64; 2 classes: no, yes" in info and "image: bytes" in info and "in 3 files" in info, info
    assert "train" in trainctl.run("data", "info", folder / "dict", code=3)
    trainctl.convert(folder / "hf", to=folder / "hf.tar", columns=["image", "label"])
    rows = trainctl.rows(folder / "hf.tar", columns=["label"])
    same(rows, [{"label": i % 2} for i in range(20)], "hf.tar")
    state = json.loads((folder / "hf/state.json").read_text())
    state["_data_files"][0]["filename"] = "../shards.parquet"
    (folder / "hf/state.json").write_text(json.dumps(state))
    assert "outside of its folder" in trainctl.run("data", "info", folder / "hf", code=3)


def mds(trainctl):
    streaming, numpy = need("streaming", "numpy")
    folder = trainctl.folder
    columns = {"id": "int", "small": "uint8", "half": "float16", "name": "str", "raw": "bytes", "meta": "json", "grid": "ndarray:float32:2,2",
               "any": "ndarray:int16", "count": "str_int", "score": "str_float"}
    rows = [{"id": i - 5, "small": numpy.uint8(i), "half": numpy.float16(i / 4), "name": f"näm{i}", "raw": b"ab%d" % i, "meta": {"a": [i, None]},
             "grid": numpy.full((2, 2), i, numpy.float32), "any": numpy.arange(i + 1, dtype=numpy.int16), "count": i * 10**9, "score": i / 7}
            for i in range(100)]
    for name, compression in [("raw", None), ("zstd", "zstd:3"), ("gz", "gz"), ("br", "br")]:
        with streaming.MDSWriter(out=str(folder / name), columns=columns, compression=compression, size_limit=4096) as writer:
            for row in rows:
                writer.write(row)
    own = streaming.LocalDataset(str(folder / "raw"))
    def plain(row):
        return {key: value.tolist() if hasattr(value, "tolist") else value.decode() if isinstance(value, bytes) else value for key, value in row.items()}
    expected = [plain(own[i]) for i in range(len(own))]
    assert "write them with zstd or gz" in trainctl.run("data", "info", folder / "br", code=3)
    for name in ["raw", "zstd", "gz"]:
        order = list(expected[0])
        same([{key: row[key] for key in order} for row in trainctl.rows(folder / name)], expected, name)
    index = folder / "raw/index.json"
    text = index.read_text()
    for old, new in [("shard.00000.mds", "../zstd/index.json"), ("shard.00000.mds", "/etc/passwd")]:
        index.write_text(text.replace(old, new))
        assert "outside of its folder" in trainctl.run("data", "info", folder / "raw", code=3)
    changed = json.loads(text)
    changed["shards"][0]["samples"] = 10**12
    index.write_text(json.dumps(changed))
    trainctl.run("data", "info", folder / "raw", code=3)
    changed["shards"][0].update(samples=1, raw_data={"basename": "none.mds", "bytes": 1 << 31, "hashes": {}}, compression="zstd",
                                zip_data={"basename": "shard.00000.mds", "bytes": 1, "hashes": {}})
    index.write_text(json.dumps(changed))
    assert "100 times" in trainctl.convert(folder / "raw", to=folder / "x.jsonl", code=3)
    index.write_text(text)
    shard = folder / "raw/shard.00001.mds"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-3])
    assert "get the file again" in trainctl.run("data", "info", folder / "raw", code=3)
    for at in range(0, len(whole), 97):
        shard.write_bytes(whole[:at] + b"\xff\xff\xff\xff" + whole[at + 4:])
        done = subprocess.run([trainctl.program, "data", "check", folder / "raw"], capture_output=True, check=False)
        assert done.returncode in ALLOWED, (at, done)


def tfrecord(trainctl):
    (package,) = need("tfrecord.writer")
    loader, numpy = need("tfrecord.reader", "numpy")
    path = trainctl.folder / "a.tfrecord"
    writer = package.TFRecordWriter(str(path))
    for i in range(ROWS):
        writer.write({"id": (i << 35, "int"), "tokens": ([i, i + 1, -3], "int"), "score": (i / 3, "float"), "grid": ([0.5, i, 2.0], "float"),
                      "text": (f"täxt {i}".encode(), "byte")})
    writer.close()
    expected = [{"id": int(row["id"][0]), "tokens": row["tokens"].tolist(), "score": float(row["score"][0]), "grid": row["grid"].tolist(),
                 "text": bytes(row["text"]).decode()} for row in loader.tfrecord_loader(str(path), None)]
    rows = [{key: row[key] for key in expected[0]} for row in trainctl.rows(path)]
    same(rows, expected, "tfrecord")
    (trainctl.folder / "a.tfrecord.gz").write_bytes(gzip.compress(path.read_bytes()))
    same([{key: row[key] for key in expected[0]} for row in trainctl.rows(trainctl.folder / "a.tfrecord.gz")], expected, "tfrecord.gz")
    (trainctl.folder / "b.tfrecord-00000-of-00001").write_bytes(gzip.compress(path.read_bytes()))  # as TensorFlow names and compresses them
    same([{key: row[key] for key in expected[0]} for row in trainctl.rows(trainctl.folder / "b.tfrecord-*")], expected, "shard of tfrecord")
    whole = bytearray(path.read_bytes())
    whole[-10] ^= 1
    path.write_bytes(whole)
    assert "checksum" in trainctl.convert(path, to=trainctl.folder / "x.jsonl", code=3)
    assert f"{ROWS} rows, 1 broken" in trainctl.run("data", "check", path, code=3)
    whole[-10] ^= 1
    whole[0:8] = (1 << 62).to_bytes(8, "little")
    path.write_bytes(whole)
    assert "checksum of a record's length" in trainctl.convert(path, to=trainctl.folder / "x.jsonl", code=3)


def lmdb_package(trainctl):
    lmdb, numpy = need("lmdb", "numpy")
    folder = trainctl.folder
    rows = [{"key": f"{i:08}", "value": f"value {i} " * (i % 900)} for i in range(ROWS)]
    with lmdb.open(str(folder / "plain"), map_size=1 << 28) as env:
        with env.begin(write=True) as transaction:
            for row in rows:
                transaction.put(row["key"].encode(), row["value"].encode() or b"-")
        with env.begin(write=True) as transaction:
            transaction.delete(b"00000003")
            transaction.put(b"00000004", b"changed")
    with lmdb.open(str(folder / "plain"), readonly=True) as env, env.begin() as transaction:
        expected = [{"key": key.decode(), "value": value.decode()} for key, value in transaction.cursor()]
    same(trainctl.rows(folder / "plain"), expected, "lmdb")
    with lmdb.open(str(folder / "named"), map_size=1 << 26) as env, env.begin(write=True) as transaction:
        for i in range(1, 40):
            transaction.put(f"label-{i:09}".encode(), f"w{i}".encode())
            transaction.put(f"text-{i:09}".encode(), f"t{i}".encode() * 2000)
        transaction.put(b"num-samples", b"39")
    same(trainctl.rows(folder / "named"), [{"label": f"w{i}", "text": f"t{i}" * 2000} for i in range(1, 40)], "named lmdb")
    damaged(trainctl, folder / "named/data.mdb", "lmdb")
    with lmdb.open(str(folder / "many"), map_size=1 << 26, max_dbs=2) as env:
        with env.begin(write=True, db=env.open_db(b"other")) as transaction:
            transaction.put(b"a", b"b")
    assert "databases with names" in trainctl.run("data", "info", folder / "many", code=3)


def megatron(trainctl):
    """Written as megatron/core/datasets/indexed_dataset.py writes it; Megatron itself has no package that installs without a GPU."""
    (numpy,) = need("numpy")
    folder = trainctl.folder
    sequences = [list(range(i % 7 + 1)) for i in range(50)]
    firsts = [0, *range(1, 50, 2), 50]
    for code, kind in [(1, "u1"), (2, "i1"), (3, "<i2"), (4, "<i4"), (5, "<i8"), (8, "<u2")]:
        name = f"d{code}"
        numpy.concatenate(sequences).astype(kind).tofile(folder / f"{name}.bin")
        lengths = numpy.array([len(s) for s in sequences], "<i4")
        places = numpy.concatenate([[0], numpy.cumsum(lengths)[:-1]]).astype("<i8") * numpy.dtype(kind).itemsize
        head = b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + bytes([code]) + len(sequences).to_bytes(8, "little") + len(firsts).to_bytes(8, "little")
        (folder / f"{name}.idx").write_bytes(head + lengths.tobytes() + places.tobytes() + numpy.array(firsts, "<i8").tobytes())
        expected = [{"tokens": sum(sequences[a:b], [])} for a, b in zip(firsts, firsts[1:])]
        same(trainctl.rows(folder / f"{name}.idx"), expected, name)
        assert f"{len(expected)} rows" in trainctl.run("data", "info", folder / f"{name}.bin")
    damaged(trainctl, folder / "d4.idx", "megatron")
    (folder / "d4.bin").write_bytes((folder / "d4.bin").read_bytes()[:-4])
    assert "get both files again" in trainctl.run("data", "info", folder / "d4.idx", code=3)


def read_with_package(name, path, columns):
    """The rows of a written file, as its own package reads them."""
    if name == "t.parquet" or name == "t.arrow":
        (pa,) = need("pyarrow.parquet" if name == "t.parquet" else "pyarrow.feather")
        return pa.read_table(path).to_pylist()
    if name == "hf/state.json":
        (datasets,) = need("datasets")
        return datasets.load_from_disk(str(path.parent)).to_list()
    if name == "t.h5":
        (h5py,) = need("h5py")
        with h5py.File(path) as file:
            sets = {key: file[key][()] for key in columns}
        plain = lambda value: value.decode() if isinstance(value, bytes) else value.tolist() if hasattr(value, "tolist") else value
        return [{key: plain(values[i]) for key, values in sets.items()} for i in range(ROWS)]
    if name == "mds/index.json":
        (streaming,) = need("streaming")
        plain = lambda value: value.tolist() if hasattr(value, "tolist") else value
        return [{key: plain(value) for key, value in row.items()} for row in streaming.LocalDataset(str(path.parent))]
    if name == "t.tfrecord":
        (loader,) = need("tfrecord.reader")
        plain = lambda value: value.decode() if isinstance(value, bytes) else value.tolist() if len(value) > 1 else value[0].item()
        return [{key: plain(value) for key, value in row.items()} for row in loader.tfrecord_loader(str(path), None)]
    if name == "lmdb/data.mdb":
        lmdb, numpy = need("lmdb", "numpy")
        import io
        with lmdb.open(str(path.parent), readonly=True) as env, env.begin() as transaction:
            assert transaction.stat()["entries"] == ROWS * len(columns) + 1 and int(transaction.get(b"num-samples")) == ROWS
            assert len(list(transaction.cursor())) == ROWS * len(columns) + 1
            entry = lambda key, i: transaction.get(f"{key}-{i + 1:09}".encode())
            rows = [{key: entry(key, i) for key in columns} for i in range(ROWS)]
        for row in rows:
            row.update(id=int(row["id"]), x=float(row["x"]), text=row["text"].decode(), grid=numpy.load(io.BytesIO(row["grid"])).tolist())
        return rows
    raise AssertionError(name)


def writers(trainctl):
    """Rows are the same after they were written in each format, for the format's own package and for trainctl."""
    (numpy,) = need("numpy")
    folder = trainctl.folder
    rows = [{"id": i - 3, "x": i / 8, "text": f"täxt \"{i}\",\n" * (1 + i % 3 * (400 if i == 7 else 1)), "grid": [[i, 1], [2, i / 4]]} for i in range(ROWS)]
    numpy.savez(folder / "n.npz", id=numpy.array([row["id"] for row in rows]), x=numpy.array([row["x"] for row in rows], "f4"), grid=numpy.array([row["grid"] for row in rows], "f4"))
    (folder / "input.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    skipped = []
    for name in ["t.h5", "mds/index.json", "t.tfrecord", "lmdb/data.mdb", "t.parquet", "t.arrow", "hf/state.json"]:
        path = folder / name
        try:
            trainctl.convert(folder / "input.jsonl", to=path)
            expected = [dict(row, grid=sum(row["grid"], [])) for row in rows] if name == "t.tfrecord" else rows
            found = read_with_package(name, path, list(rows[0]))
            same([{key: row[key] for key in rows[0]} for row in found], expected, name)
            if name != "lmdb/data.mdb":
                own = trainctl.rows(path.parent if "/" in name else path)
                same([{key: row[key] for key in rows[0]} for row in own], expected, f"{name} by trainctl")
            assert f"{ROWS} rows, 0 broken" in trainctl.run("data", "check", path.parent if "/" in name else path), name
            typed = folder / name.replace("t.", "typed.").replace("/", "_typed/")
            trainctl.convert(folder / "n.npz", to=typed)
            assert f"{ROWS} rows, 0 broken" in trainctl.run("data", "check", typed.parent if "/" in name else typed), name
        except Missing as error:
            skipped.append(str(error))
        except AssertionError as error:
            if "TRAINCTL_ARROW" not in str(error):
                raise
            skipped.append("libtrainctl_arrow.so")
    trainctl.convert(folder / "input.jsonl", to=folder / "a.jsonl.gz")
    assert [json.loads(line) for line in gzip.decompress((folder / "a.jsonl.gz").read_bytes()).splitlines()] == rows
    trainctl.convert(folder / "input.jsonl", to=folder / "a.csv", columns=["id", "x", "text"])
    import csv
    with open(folder / "a.csv", newline="") as file:
        same([{"id": int(row["id"]), "x": float(row["x"]), "text": row["text"]} for row in csv.DictReader(file)],
             [{key: row[key] for key in ("id", "x", "text")} for row in rows], "csv")
    (folder / "tokens.jsonl").write_text("".join(json.dumps({"tokens": list(range(i % 6))}) + "\n" for i in range(40)))
    trainctl.convert(folder / "tokens.jsonl", to=folder / "m.idx")
    same(trainctl.rows(folder / "m.idx"), [{"tokens": list(range(i % 6))} for i in range(40)], "megatron")
    (folder / "keys.jsonl").write_text("".join(json.dumps({"key": f"k{i:05}", "value": "v" * (i % 40 * 100)}) + "\n" for i in reversed(range(2000))))
    trainctl.convert(folder / "keys.jsonl", to=folder / "keys/data.mdb")
    same(trainctl.rows(folder / "keys"), [{"key": f"k{i:05}", "value": "v" * (i % 40 * 100)} for i in range(2000)], "2,000 keys")
    if skipped:
        raise Missing("; ".join(skipped))


def text_tables(trainctl):
    folder = trainctl.folder
    (folder / "a.csv").write_text('id,"na,me",x\n1,"a ""b""\nc",1.5\n2,d,-3e4\n')
    same(trainctl.rows(folder / "a.csv"), [{"id": 1, "na,me": 'a "b"\nc', "x": 1.5}, {"id": 2, "na,me": "d", "x": -3e4}], "csv")


def losses(trainctl, folder, job, *overrides):
    output = trainctl.run("run", folder / job, f"launch.log_dir={folder}/log_{job}", *overrides)
    return [line.split("loss is ")[1] for line in output.splitlines() if "loss is " in line]


def jobs(trainctl):
    """The same values in other formats train with the same losses, on one rank and on two."""
    folder = trainctl.folder
    rows = [{"a": i % 7 / 8, "b": i % 5 - 2, "kind": "xyz"[i % 3]} for i in range(60)]
    (folder / "t.csv").write_text("a,b,kind\n" + "".join(f"{row['a']},{row['b']},{row['kind']}\n" for row in rows))
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "l.jsonl").write_text("".join(json.dumps({"x": [row["a"], row["b"]], "kind": row["kind"]}) + "\n" for row in rows))
    names = ["t.csv", "t.jsonl", "l.jsonl"]
    try:
        need("pyarrow")
        trainctl.convert(folder / "t.jsonl", to=folder / "t.parquet")
        names.append("t.parquet")
    except Missing:
        pass
    found = {}
    for name in names:
        data = "x" if name == "l.jsonl" else "[a, b]"
        (folder / f"{name}.yaml").write_text(
            f"seed: 3\ndataset: {{type: table, path: {name}, fields: {{data: {data}, label: kind}}, batch: 12, split: {{train: 0.8, validation: 0.2}}}}\n"
            "network: [{type: dense, units: 8}, {type: relu}, {type: dense, units: 3}]\nloss: softmax_cross_entropy\n"
            "optimizer: {type: sgd, learning_rate: 0.1}\ntrain: {epochs: 2}\nvalidation: {every_epochs: 1}\nmetrics: [accuracy]\n"
            "launch: {ranks: 1, device: cpu}\n")
        assert "0 broken" in trainctl.run("data", "check", folder / f"{name}.yaml"), name
        found[name] = losses(trainctl, folder, f"{name}.yaml")
    assert len(found["t.csv"]) > 0 and all(one == found["t.csv"] for one in found.values()), found
    both = losses(trainctl, folder, f"{names[-1]}.yaml", "launch.ranks=2", "parallel.mode=data_parallel")
    assert len(both) == len(found["t.csv"]) and all(abs(float(a.split(",")[0]) - float(b.split(",")[0])) < 1e-3 for a, b in zip(both, found["t.csv"])), (both, found["t.csv"])
    (folder / "bad.jsonl").write_text('{"a": 1, "b": 2, "kind": "x"}\n{"a": "one", "b": 2, "kind": "x"}\n')
    text = (folder / "t.jsonl.yaml").read_text().replace("path: t.jsonl", "path: bad.jsonl")
    (folder / "bad.yaml").write_text(text)
    assert "bad.jsonl:2" in trainctl.run("data", "check", folder / "bad.yaml", code=3)
    (folder / "bad.yaml").write_text(text.replace("label: kind", "label: knd"))
    assert "did you mean 'kind'" in trainctl.run("check", folder / "bad.yaml", code=2)


TALKS = """dataset: {type: chat, path: %s, tokenizer: model, length: 96, pack: true, train_on: assistant, batch: 4}
network:
  - {name: words, type: embedding, vocab: 320, units: 32}
  - {name: qkv, type: dense, units: 96}
  - {name: attn, type: attention, heads: 4, causal: true, inputs: [qkv, documents]}
  - {name: out, type: dense, units: 320}
loss: {type: softmax_cross_entropy, ignore_index: -100}
optimizer: {type: adam, learning_rate: 0.01}
train: {epochs: 2}
launch: {ranks: 1, device: cpu}
"""
TEMPLATE = """{% for m in messages %}<|im_start|>{{ m['role'] }}
{{ m['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


CLASSES = """dataset: {type: text, path: %s, tokenizer: model, length: 24, label_field: kind, batch: 4}
network:
  - {name: words, type: embedding, vocab: 320, units: 16}
  - {name: flat, type: flatten}
  - {name: out, type: dense, units: 3}
loss: softmax_cross_entropy
optimizer: {type: adam, learning_rate: 0.01}
train: {epochs: 2}
launch: {ranks: 1, device: cpu}
"""
PAIRS = TALKS.replace("type: chat", "type: preference").replace("pack: true, train_on: assistant, ", "").replace(
    "loss: {type: softmax_cross_entropy, ignore_index: -100}", "adapters: {lora: {layers: [qkv, out], rank: 4, alpha: 8}}\nloss: {type: dpo, beta: 0.5}")


def documents(trainctl):
    """Conversations, texts, classes of texts and pairs of Parquet files train with the losses that the same rows of JSON Lines give."""
    pa, parquet = need("pyarrow", "pyarrow.parquet")
    folder = trainctl.folder
    rows = [{"messages": [{"role": "user", "content": f"What follows {i}?"}, {"role": "assistant", "content": f"It is {i + 1}."}],
             "text": f"What follows {i}? It is {i + 1}. " * (1 + i % 3), "prompt": f"What follows {i}? ", "chosen": f"It is {i + 1}.",
             "rejected": "No idea.", "kind": i % 3, "score": i / 40, "note": None} for i in range(40)]
    for name, chosen in [("all", rows), ("first", rows[:17]), ("rest", rows[17:])]:
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chosen))
        parquet.write_table(pa.Table.from_pylist(chosen), folder / f"{name}.parquet", row_group_size=7)
    (folder / "words.txt").write_text("\n".join(row["text"] for row in rows))
    trainctl.run("data", "train-tokenizer", folder / "words.txt", "--vocab", "300", "--special", "<|im_start|>", "<|im_end|>", "-o", folder / "model")
    (folder / "model/chat_template.jinja").write_text(TEMPLATE)
    text = TALKS.replace("type: chat", "type: text").replace(", train_on: assistant", "")
    kinds = {"chat": TALKS, "text": text, "filtered": text.replace("pack: true", "pack: true, filter: score > 0.3"),
             "whole": text.replace("pack: true, ", "").replace("[qkv, documents]", "[qkv]").replace("length: 96", "length: 16"),
             "classes": CLASSES, "pairs": PAIRS}
    for kind, job in kinds.items():
        found = {}
        for name in ["all.jsonl", "all.parquet", "[first.parquet, rest.parquet]"]:
            file = f"{kind}.{name.strip('[]').replace(', ', '.')}.yaml"
            (folder / file).write_text(job % name)
            found[name] = losses(trainctl, folder, file)
        assert len(found["all.jsonl"]) > 2 and all(one == found["all.jsonl"] for one in found.values()), (kind, found)
    lists = [{"chosen": row["messages"], "rejected": [row["messages"][0], {"role": "assistant", "content": "No idea."}]} for row in rows]  # messages, with their prompt in common
    (folder / "lists.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lists))
    parquet.write_table(pa.Table.from_pylist(lists), folder / "lists.parquet", row_group_size=9)
    for end in ("jsonl", "parquet"):
        (folder / f"lists.{end}.yaml").write_text(PAIRS % f"lists.{end}")
    found = [losses(trainctl, folder, f"lists.{end}.yaml") for end in ("jsonl", "parquet")]
    assert found[0] == found[1] and float(found[0][-1]) < float(found[0][0]), found
    both = losses(trainctl, folder, "chat.all.parquet.yaml", "launch.ranks=2", "parallel.mode=data_parallel")
    single = losses(trainctl, folder, "chat.all.jsonl.yaml")
    assert len(both) == len(single) and all(abs(float(a) - float(b)) < 1e-3 for a, b in zip(both, single)), (both, single)
    shown = [trainctl.run("data", "show", folder / f"chat.all.{end}.yaml", "--tokens", "-n", "1").split("\n", 1)[1] for end in ("jsonl", "parquet")]
    assert shown[0] == shown[1], shown
    (folder / "bad.yaml").write_text(TALKS % "all.parquet, field: talk")
    refused = trainctl.run("check", folder / "bad.yaml", code=2)
    assert "talk" in refused and "all.parquet" in refused, refused
    tokens = [trainctl.run("data", "tokens", folder / f"all.{end}", "--tokenizer", folder / "model", "-o", folder / f"{end}.bin") for end in ("jsonl", "parquet")]
    assert tokens and (folder / "jsonl.bin").read_bytes() == (folder / "parquet.bin").read_bytes()


def audio(trainctl):
    soundfile, numpy = need("soundfile", "numpy")
    folder = trainctl.folder
    rng = numpy.random.default_rng(2)
    files = []
    for number, (name, form, kind, channels) in enumerate([("no/a.wav", "WAV", "PCM_16", 1), ("no/b.flac", "FLAC", "PCM_24", 2), ("yes/c.wav", "WAV", "FLOAT", 2),
                                                           ("yes/deep/d.wav", "WAV", "PCM_U8", 1)]):
        path = folder / "clips" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, rng.uniform(-0.9, 0.9, (900 + 200 * number, channels)), 8000, subtype=kind, format=form)
        files.append((path, name.split("/")[0]))
    length, window, hop, bins = 1100, 200, 80, 10
    job = ("dataset: {type: audio_folder, path: clips, length: 1100, sample_rate: 8000, batch: 4, shuffle: false%s}\n"
           "network: [{type: flatten}, {type: dense, units: 2}]\nloss: softmax_cross_entropy\ntrain: {epochs: 1}\nlaunch: {ranks: 1, device: cpu}\n")
    edges = 700 * (10 ** (numpy.linspace(0, 2595 * numpy.log10(1 + 4000 / 700), bins + 2) / 2595) - 1)
    frequencies = numpy.arange(129) * 8000 / 256
    weights = numpy.maximum(0, numpy.minimum((frequencies[None] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None],
                                             (edges[2:, None] - frequencies[None]) / (edges[2:] - edges[1:-1])[:, None]))
    hann = 0.5 - 0.5 * numpy.cos(2 * numpy.pi * numpy.arange(window) / window)
    for mel in ["", ", audio: mel, window: 200, hop: 80, mel_bins: 10"]:
        (folder / "job.yaml").write_text(job % mel)
        shown = trainctl.run("data", "show", folder / "job.yaml", "-n", 4).splitlines()
        for (path, label), line in zip(files, shown):
            values, _ = soundfile.read(path, dtype="float32", always_2d=True)
            values = numpy.pad(values.mean(1), (0, length))[:length]
            if mel:
                frames = numpy.stack([values[at:at + window] * hann for at in range(0, length - window + 1, hop)])
                values = numpy.log(numpy.maximum(numpy.abs(numpy.fft.rfft(frames, 256)) ** 2 @ weights.T, 1e-10)).ravel()
            assert f"({label})" in line and str(path) in line, line
            found = [float(text) for text in line.split("audio ")[1].split("label")[0].replace("…", "").split(",") if text.strip()]
            assert len(found) == 8 and numpy.allclose(found, values[:8], rtol=2e-3, atol=1e-4), (line, values[:8])
        assert "4 samples, 0 broken" in trainctl.run("data", "check", folder / "job.yaml")
    trainctl.run("run", folder / "job.yaml", f"launch.log_dir={folder}/log")
    (folder / "job.yaml").write_text((job % "").replace("8000", "16000"))
    assert "8,000 samples per second" in trainctl.run("data", "check", folder / "job.yaml", code=3)
    path = files[1][0]
    whole = path.read_bytes()
    (folder / "job.yaml").write_text(job % "")
    for cut in [0, 3, 60, len(whole) // 2]:
        path.write_bytes(whole[:cut])
        done = subprocess.run([trainctl.program, "data", "check", folder / "job.yaml"], capture_output=True, check=False)
        assert done.returncode in ALLOWED, (cut, done)


CASES = {"json_lines": json_lines, "zstandard": zstandard_package, "arrow": arrow, "arrow_versions": arrow_versions, "hdf5": hdf5, "writers": writers, "hugging_face": hugging_face, "mds": mds, "tfrecord": tfrecord,
         "lmdb": lmdb_package, "megatron": megatron, "jobs": jobs, "documents": documents, "audio": audio, "csv": text_tables}


def main():
    program, *names = sys.argv[1:]
    peers = pathlib.Path(__file__).resolve().parents[3] / "build/peers/bin/python3"
    if importlib.util.find_spec("pyarrow") is None and peers.exists() and pathlib.Path(sys.prefix) != peers.parent.parent:
        os.execv(peers, [str(peers), *sys.argv])
    program = str(pathlib.Path(program).resolve())
    left_out, failed = [], []
    for name in names or CASES:
        with tempfile.TemporaryDirectory(prefix="trainctl_tables_") as folder:
            trainctl = Trainctl(program, pathlib.Path(folder))
            try:
                CASES[name](trainctl)
                print(f"{name}: ok", flush=True)
            except Missing as error:
                left_out.append(f"{name} ({error})")
            except AssertionError as error:
                failed.append(name)
                print(f"{name}: FAILED: {error}\n{traceback.format_exc()}", flush=True)
    if left_out:
        print("Skipped: " + "; ".join(left_out))
    return 1 if failed else SKIPPED if left_out else 0


if __name__ == "__main__":
    sys.exit(main())
