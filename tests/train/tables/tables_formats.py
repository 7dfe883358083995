"""One function per format: a file that the format's own Python package writes is read with the values that the package reads."""
import gzip
import json
import os
import pathlib
import subprocess

from tables_support import ALLOWED, ROWS, damaged, need, python_rows, same


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
