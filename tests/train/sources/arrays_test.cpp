// Tests of arrays in files: npy, npz, safetensors and CIFAR's records, written here byte by byte.
// foreign_files_test.cpp reads files that NumPy itself has written.
#include "engine/train/data/sources/arrays.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "engine/train/data/sources/cifar.h"
#include "engine/train/data/sources/zip_file.h"
#include "engine/train/files/safetensors.h"
#include "tests/train/sources/npz_files.h"
#include "tests/train/sources/read_source.h"

using namespace trainctl;

namespace {

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::unique_ptr<Source> open_arrays(const ScratchFolder& folder, const std::string& file) {
  return open_npy({.fields = {{"x", {folder.write("x.npy", to_bytes(file))}}}});
}

std::string error_of_npy(const std::string& file) {
  const ScratchFolder folder;
  const std::string error = error_of([&] { open_arrays(folder, file); });
  return error.starts_with(folder.path()) ? error.substr(folder.path().size() + 1) : error;
}

const std::string kLabels = npy("<i8", "3", raw<int64_t>({5, 6, 7}));
const std::string kImages = npy("|u1", "3, 2", "abcdef");

}  // namespace

TEST_CASE("the first dim of an array counts samples, and numbers are widened by the stated rule") {
  const ScratchFolder folder;
  CHECK(fields_of(*open_arrays(folder, npy("|u1", "2, 1, 3", "abcdef"))) == Texts{"x: u8 [1, 3]"});
  CHECK(all_values<uint8_t>(*open_arrays(folder, npy("|b1", "3", std::string("\0\1\2", 3))), 0) ==
        std::vector<uint8_t>{0, 1, 1});
  CHECK(all_values<int32_t>(*open_arrays(folder, npy("|i1", "2", "\xFF\x7F")), 0) == std::vector<int32_t>{-1, 127});
  CHECK(all_values<int32_t>(*open_arrays(folder, npy("<i2", "2", raw<int16_t>({-300, 300}))), 0) ==
        std::vector<int32_t>{-300, 300});
  CHECK(all_values<uint16_t>(*open_arrays(folder, npy("<u2", "1", raw<uint16_t>({65'535}))), 0) ==
        std::vector<uint16_t>{65'535});
  CHECK(all_values<int64_t>(*open_arrays(folder, npy("<u4", "1", raw<uint32_t>({4'000'000'000}))), 0) ==
        std::vector<int64_t>{4'000'000'000});
  CHECK(all_values<int64_t>(*open_arrays(folder, npy("<i8", "1", raw<int64_t>({-1}))), 0) == std::vector<int64_t>{-1});
  CHECK(all_values<float>(*open_arrays(folder, npy("<f4", "1", raw<float>({.1f}))), 0) == std::vector<float>{.1f});
  CHECK(all_values<float>(*open_arrays(folder, npy("<f8", "2", raw<double>({.1, 1e-60}))), 0) ==
        std::vector<float>{.1f, 0});
  const auto halves = raw<uint16_t>({0x3C00, 0xC000, 0x3555, 0x7BFF, 0x0001, 0x8400, 0x7C00});
  CHECK(all_values<float>(*open_arrays(folder, npy("<f2", "7", halves)), 0) ==
        std::vector<float>{1, -2, 0.333251953125f, 65504, 0x1p-24f, -0x1p-14f, INFINITY});
}

TEST_CASE("arrays of several files are joined at their first dim, and fields have the same number of samples") {
  const ScratchFolder folder;
  folder.write("x0.npy", to_bytes(npy("<i4", "2", raw<int32_t>({1, 2}))));
  folder.write("x1.npy", to_bytes(npy("<i4", "1", raw<int32_t>({3}))));
  folder.write("y.npy", to_bytes(npy("|u1", "3", "abc")));
  folder.write("z.npy", to_bytes(npy("|u1", "2", "ab")));
  const auto field = [&](const char* name, const std::string& files) {
    return NpyField{name, {folder.path() + "/" + files}};
  };
  const auto source = open_npy({.fields = {field("x", "x*.npy"), field("y", "y.npy")}});
  CHECK(all_values<int32_t>(*source, 0) == std::vector<int32_t>{1, 2, 3});
  CHECK(text_of(read_sample(*source, 2)[1]) == "c");
  CHECK(source->where(2) == folder.path() + "/x1.npy: sample 0");
  CHECK(contains(error_of([&] {
                   open_npy({.fields = {field("x", "x*.npy"), field("z", "z.npy")}});
                 }),
                 "dataset.fields.z: has 2 samples, but 'x' has 3"));
  CHECK(contains(error_of([&] { open_npy({.fields = {field("x", "[xy]0.npy")}}); }),
                 "dataset.fields.x: there is no file"));
  CHECK(contains(error_of([&] { open_npy({.fields = {field("x", "*.npy")}}); }),
                 "y.npy has samples of u8 [], but the previous files have i32 []"));
}

TEST_CASE("the error for an invalid npy file states the byte") {
  CHECK(error_of_npy("PK\3\4 something else") == "x.npy: byte 0: expected \\x93NUMPY: it is not a NumPy array");
  CHECK(contains(error_of_npy(""), "x.npy: byte 0: expected"));
  CHECK(contains(error_of_npy(kImages.substr(0, 20)), "x.npy: byte 8: the header has "));
  CHECK(contains(error_of_npy(kImages.substr(0, kImages.size() - 1)),
                 "u8 [3, 2] needs 6 bytes, found 5: it is truncated"));
  CHECK(contains(error_of_npy(kImages + "x"), "found 7: it is too long"));
  std::string version = kImages;
  version[6] = 9;
  CHECK(contains(error_of_npy(version), "byte 6: expected a format of 1 to 3, found 9"));
  for (const char* descr : {">f4", "<u8", "<c8", "<U5", "|O", "|V3", "<f16"})
    CHECK(
        contains(error_of_npy(npy(descr, "1", "12345678")), fmt::format("elements of '{}' are not supported", descr)));
  CHECK(contains(error_of_npy(npy_of("{'descr': '|u1', 'fortran_order': True, 'shape': (2, 2), }\n", "abcd")),
                 "numpy.ascontiguousarray"));
  CHECK(contains(error_of_npy(npy_of("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (1,), }", "abcd")),
                 "byte 20: structured arrays are not supported"));
  CHECK(contains(error_of_npy(npy_of("{'descr': '|u1', 'shape': (1,)}", "a")),
                 "the header needs descr, fortran_order and shape"));
  CHECK(contains(error_of_npy(npy("|u1", "9223372036854775807, 2", "a")), "exceeds the maximum file size"));
  CHECK(contains(error_of_npy(npy("|u1", "-1", "a")), "expected a dim of the shape"));
  CHECK(contains(error_of_npy(npy("|u1", "0, 4611686018427387904, 4611686018427387904", "")), "is empty"));
  CHECK(contains(error_of_npy(npy_of("{'descr': '|u1', 'fortran_order': False, 'shape': ()}", "a")), "is a scalar"));
}

TEST_CASE("a deflated member that would inflate to far more than it has is refused before memory is taken for it") {
  const ScratchFolder folder;
  std::string file = zip_of({{"x.npy", std::string(size_t{2} << 20, 'x')}});
  const size_t directory = file.rfind("PK\1\2");
  file[directory + 10] = 8;  // deflated
  file.replace(directory + 24, 4, number(uint64_t{2} << 30, 4));
  const std::string path = folder.write("f.npz", to_bytes(file));
  CHECK(error_of([&] { open_npz({.paths = {path}}); }) ==
        path +
            ": 'x.npy': 2,097,152 bytes would inflate to 2.0 GiB, more than 100 times as much, which indicates a "
            "damaged or malicious file; if the file is valid, store it uncompressed, as np.savez does");
}

// A regression: each member alone was within the limit.
TEST_CASE("deflated members of a file are limited together, whether or not they share their data") {
  constexpr int64_t kPacked = int64_t{250} << 10, kInflated = int64_t{250} << 20;
  std::vector<ZipMember> members;
  for (int i = 0; i < 12; ++i) members.push_back({"x" + std::to_string(i) + ".npy", true, kPacked, kInflated, 0});
  require_may_inflate(std::span(members).first(1), kPacked, "f.npz");
  const char* expected = "f.npz: 'x0.npy' and 11 more: 3,072,000 bytes would inflate to 2.9 GiB";
  CHECK_THROWS_WITH_AS(require_may_inflate(members, 12 * kPacked, "f.npz"), doctest::Contains(expected), EnvError);
  CHECK_THROWS_WITH_AS(require_may_inflate(members, kPacked, "f.npz"), doctest::Contains(": 256,000 bytes would"),
                       EnvError);
  for (ZipMember& member : members) member.is_deflated = false;
  require_may_inflate(members, 12 * kPacked, "f.npz");
}

TEST_CASE("stored members of an npz are read in place, and deflated ones are kept in memory") {
  const ScratchFolder folder;
  const auto open_arrays = [&](bool deflated) {
    const std::string file = zip_of({{"y.npy", kLabels, deflated}, {"x.npy", kImages, false}});
    return open_npz({.paths = {folder.write(deflated ? "d.npz" : "s.npz", to_bytes(file))}});
  };
  for (const bool deflated : {false, true}) {
    const auto source = open_arrays(deflated);
    CHECK(fields_of(*source) == Texts{"y: i64 []", "x: u8 [2]"});
    CHECK(all_values<int64_t>(*source, 0) == std::vector<int64_t>{5, 6, 7});
    CHECK(text_of(read_sample(*source, 1)[1]) == "cd");
  }
  CHECK(open_arrays(true)->memory_bytes() - open_arrays(false)->memory_bytes() == int64_t(kLabels.size()));
  const auto named = open_npz({.paths = {folder.path() + "/*.npz"}, .fields = {{"image", "x"}}});
  CHECK(fields_of(*named) == Texts{"image: u8 [2]"});
  CHECK(named->size() == 6);
  CHECK(contains(error_of([&] {
                   open_npz({.paths = {folder.path() + "/d.npz"}, .fields = {{"z", "z"}}});
                 }),
                 "dataset.fields.z: " + folder.path() + "/d.npz has no array 'z'"));
}

TEST_CASE("an error of an npz file names the file, and the member that is damaged") {
  const ScratchFolder folder;
  const auto error = [&](const std::string& file) {
    const std::string path = folder.write("t.npz", to_bytes(file));
    return error_of([&] { open_npz({.paths = {path}}); });
  };
  const std::string good = zip_of({{"y.npy", kLabels, true}});
  CHECK(error(good) == "no error");
  for (size_t bytes = 0; bytes < good.size(); bytes += 7)
    CHECK(contains(error(good.substr(0, bytes)), "t.npz: cannot be read as a zip file: "));
  const size_t directory = good.find("PK\1\2");
  const auto changed = [&](size_t at, char to) {
    std::string file = good;
    file[at] = to;
    return file;
  };
  CHECK(contains(error(changed(directory + 8, 1)), "'y.npy': is encrypted"));
  CHECK(contains(error(changed(directory + 10, 12)), "'y.npy': is compressed with method 12"));
  CHECK(contains(error(changed(directory + 16, char(good[directory + 16] + 1))),
                 "'y.npy': its content does not match its checksum; download the file again"));
  CHECK(contains(error(changed(directory + 24, 9)), "'y.npy': has more than 9 bytes"));
  CHECK(contains(error(changed(directory + 25, 9)), "t.npz: 'y.npy': "));  // The directory of the zip file states
                                                                           // another size than the data have.
  CHECK(contains(error(changed(directory + 27, 127)), "'y.npy': 2,13"));   // 100 bytes cannot inflate to 2 GB.
  CHECK(contains(error(changed(directory + 42, 3)), "t.npz: 'y.npy': "));  // There is no header at this offset.
  CHECK(contains(error(changed(35 + 5 + 4, 'x')), "t.npz: 'y.npy': "));    // The data are damaged.
  CHECK(error(good + "x") == "no error");                                  // Zip programs and NumPy accept bytes after
                                                                           // the end too.
}

TEST_CASE("a stored member of an npz that extends beyond the file is an error when the file is opened") {
  const ScratchFolder folder;
  std::string file = zip_of({{"x.npy", kImages}});
  const size_t directory = file.find("PK\1\2");
  for (const size_t size : {directory + 20, directory + 24}) file.replace(size, 4, number(file.size(), 4));
  const std::string path = folder.write("t.npz", to_bytes(file));
  CHECK(contains(error_of([&] { open_npz({.paths = {path}}); }), "t.npz: 'x.npy': extends beyond the end of the file"));
}

TEST_CASE("tensors of a safetensors file are fields, their first dim counts samples") {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/t.safetensors";
  {
    SafetensorsWriter writer(path, {{.name = "x", .type = StoredType::f32, .shape = {2, 2}},
                                    {.name = "b", .type = StoredType::bf16, .shape = {2}},
                                    {.name = "y", .type = StoredType::i64, .shape = {2}}});
    const auto write = [&](const char* name, const std::string& data) {
      writer.write(writer.index_of(name), 0, {reinterpret_cast<const uint8_t*>(data.data()), data.size()});
    };
    write("x", raw<float>({1, 2, 3, 4}));
    write("b", raw<uint16_t>({0x3F80, 0x4000}));
    write("y", raw<int64_t>({8, 9}));
    writer.finish();
  }
  const auto source = open_safetensors({.paths = {path}, .fields = {{"data", "x"}, {"label", "y"}, {"b", "b"}}});
  CHECK(fields_of(*source) == Texts{"data: f32 [2]", "label: i64 []", "b: bf16 []"});
  CHECK(values_of<float>(read_sample(*source, 1)[0]) == std::vector<float>{3, 4});
  CHECK(all_values<int64_t>(*source, 1) == std::vector<int64_t>{8, 9});
  CHECK(all_values<uint16_t>(*source, 2) == std::vector<uint16_t>{0x3F80, 0x4000});
  CHECK(open_safetensors({.paths = {path}})->fields().size() == 3);
  CHECK(contains(error_of([&] { open_safetensors({.paths = {path}, .fields = {{"z", "z"}}}); }), "has no array 'z'"));
}

TEST_CASE("records of CIFAR are a label and an image with its channels first") {
  const ScratchFolder folder;
  std::string ten, hundred;
  for (int r = 0; r < 3; ++r) {
    std::string image(3072, char(r));
    image[1024] = char(100 + r);
    ten += char(r + 5) + image;
    hundred += char(r) + (char(50 + r) + image);
  }
  const auto of_ten = open_cifar({.paths = {folder.write("data_batch_1.bin", to_bytes(ten))}});
  CHECK(fields_of(*of_ten) == Texts{"image: u8 [3, 32, 32]", "label: u8 []"});
  CHECK(all_values<uint8_t>(*of_ten, 1) == std::vector<uint8_t>{5, 6, 7});
  const auto image = values_of<uint8_t>(read_sample(*of_ten, 2)[0]);
  CHECK(std::vector<int>{image[0], image[1024], image[3071]} == std::vector<int>{2, 102, 2});
  const auto of_hundred = open_cifar({.paths = {folder.write("train.bin", to_bytes(hundred))}, .classes = 100});
  CHECK(fields_of(*of_hundred) == Texts{"image: u8 [3, 32, 32]", "label: u8 []", "coarse: u8 []"});
  CHECK(all_values<uint8_t>(*of_hundred, 1) == std::vector<uint8_t>{50, 51, 52});
  CHECK(all_values<uint8_t>(*of_hundred, 2) == std::vector<uint8_t>{0, 1, 2});
  CHECK(
      contains(error_of([&] { open_cifar({.paths = {folder.path() + "/train.bin"}}); }),
               "train.bin: expected records of 3,073 bytes (CIFAR-10, the binary version), found 9,222 bytes: 3 more"));
  folder.write("train.bin", {});
  CHECK(contains(error_of([&] { open_cifar({.paths = {folder.path() + "/train.bin"}, .classes = 100}); }),
                 "found 0 bytes"));
}

TEST_CASE("a finite number that f32 cannot represent is an error that names its sample, but an infinity is not") {
  const ScratchFolder folder;
  const auto source = open_arrays(folder, npy("<f8", "3", raw<double>({1, INFINITY, -1e39})));
  CHECK(values_of<float>(read_sample(*source, 1)[0]) == std::vector<float>{INFINITY});
  CHECK(error_of([&] { read_sample(*source, 2); }) ==
        folder.path() + "/x.npy: sample 2: x: the number -1e+39 is too large for a 32-bit float");
}

TEST_CASE("the checksums of stored members of an npz are checked, also those of members that are not deflated") {
  for (const bool deflated : {false, true}) {
    CAPTURE(deflated);
    const ScratchFolder folder;
    std::string file = zip_of({{"data.npy", kImages, deflated}, {"label.npy", kLabels, deflated}});
    const ArrayFileOptions options{.paths = {folder.write("a.npz", to_bytes(file))},
                                   .fields = {{"data", "data"}, {"label", "label"}}};
    CHECK_NOTHROW(check_npz(options));
    if (deflated) continue;  // open_npz itself inflates them
    file[file.find("abcdef") + 3] ^= 1;
    folder.write("a.npz", to_bytes(file));
    CHECK_NOTHROW(open_npz(options));
    CHECK(
        contains(error_of([&] { check_npz(options); }), "a.npz: 'data.npy': its content does not match its checksum"));
    CHECK_NOTHROW(check_npz({.paths = options.paths, .fields = {{"label", "label"}}}));
  }
}

TEST_CASE("an npz file that has an array twice is refused") {
  const ScratchFolder folder;
  const std::string path = folder.write("a.npz", to_bytes(zip_of({{"x.npy", kImages}, {"x.npy", kImages}})));
  CHECK(contains(error_of([&] { open_npz({.paths = {path}, .fields = {{"x", "x"}}}); }), "contains 'x.npy' twice"));
}
