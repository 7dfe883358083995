"""Files that Python's own libraries write, for foreign_files_test.cpp, which knows what is in them.

    make_files.py tar|csv|numpy|safetensors FOLDER         exits with 77 where a library is missing
"""
import csv, io, pathlib, sys, tarfile

kind, folder = sys.argv[1], pathlib.Path(sys.argv[2])


def make_tar():
    for name, format in [("ustar", tarfile.USTAR_FORMAT), ("gnu", tarfile.GNU_FORMAT), ("pax", tarfile.PAX_FORMAT)]:
        with tarfile.open(folder / f"{name}.tar", "w", format=format) as tar:
            for i in range(40):
                stem = f"{'d' * (20 if name == 'ustar' else 120)}/{'n' * 90}{i:03}"
                for extension, data in [("jpg", bytes([i]) * (i * 37 + 1)), ("cls", str(i * i - 5).encode()), ("txt", "é".encode() * i)]:
                    info = tarfile.TarInfo(f"{stem}.{extension}")
                    info.size, info.mtime = len(data), 1.5
                    tar.addfile(info, io.BytesIO(data))


def make_csv():
    for name, quoting in [("minimal", csv.QUOTE_MINIMAL), ("all", csv.QUOTE_ALL), ("text", csv.QUOTE_NONNUMERIC)]:
        for delimiter in [",", ";", "\t"]:
            with open(folder / f"{name}{ord(delimiter)}.csv", "w", newline="") as file:
                table = csv.writer(file, quoting=quoting, delimiter=delimiter)
                table.writerow(["number", "a,b;c\td", 'say "x"'])
                for i in range(200):
                    table.writerow([i * 0.1 - 3, f'w{i % 3}, "{i % 3}"\r\n;\t', i - 100])


def make_numpy():
    import numpy as np
    for type in ["u1", "i1", "u2", "i2", "i4", "u4", "i8", "f2", "f4", "f8", "?"]:
        values = (np.arange(24) % 2 == 0) if type == "?" else np.arange(24).astype(type)
        np.save(folder / f"{type if type != '?' else 'b1'}.npy", values.reshape(4, 3, 2))
    np.save(folder / "fortran.npy", np.asfortranarray(np.zeros((3, 2), "f4")))
    np.save(folder / "objects.npy", np.array([{}, []], dtype=object), allow_pickle=True)
    np.save(folder / "texts.npy", np.array(["a", "bc"]))
    np.save(folder / "big.npy", np.zeros(3, ">f4"))
    np.save(folder / "records.npy", np.zeros(3, [("x", "f4")]))
    with open(folder / "version2.npy", "wb") as file:
        np.lib.format.write_array(file, np.arange(5, dtype="i4"), version=(2, 0))
    arrays = dict(x=np.arange(300, dtype="f4").reshape(100, 3), y=np.arange(100))
    np.savez(folder / "stored.npz", **arrays)
    np.savez_compressed(folder / "deflated.npz", **arrays)


def make_safetensors():
    import numpy as np
    from safetensors.numpy import save_file
    save_file({"x": np.arange(12, dtype="f4").reshape(4, 3), "y": np.arange(4), "h": np.arange(4, dtype="f2")},
              folder / "t.safetensors")


try:
    {"tar": make_tar, "csv": make_csv, "numpy": make_numpy, "safetensors": make_safetensors}[kind]()
except ImportError as missing:
    print(missing)
    sys.exit(77)
