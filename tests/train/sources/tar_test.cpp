// Tests of tar shards: which files are a sample, how each kind is read, and every way in which a shard can be damaged.
#include "engine/train/data/sources/tar.h"

#include <doctest/doctest.h>

#include "tests/train/sources/read_source.h"
#include "tests/train/sources/tar_bytes.h"

using namespace trainctl;

namespace {

std::string tar_npy(const std::string& descr, const std::string& shape, const std::string& data) {
  std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header.resize(117, ' ');
  return std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + "\n" + data;
}

std::string error_of_tar(const ScratchFolder& folder, const ByteVector& bytes, std::vector<TarField> fields = {}) {
  const std::string tar = folder.write("t.tar", bytes);
  return error_of([&] {
    const auto source = open_tar({.paths = {tar}, .fields = std::move(fields)});
    for (int64_t s = 0; s < source->size(); ++s) read_sample(*source, s);
  });
}

}  // namespace

TEST_CASE("consecutive files with a common stem are a sample of a tar shard") {
  const ScratchFolder folder;
  const auto source = open_tar({.paths = {folder.write("t.tar", kTwoSamples)}});
  REQUIRE(source->size() == 2);
  CHECK(fields_of(*source) == Texts{"image: image", "label: i32 []"});
  CHECK(text_of(read_sample(*source, 0)[0]) == "JPEG0");
  CHECK(text_of(read_sample(*source, 1)[0]) == "PNG1");
  CHECK(all_values<int32_t>(*source, 1) == std::vector<int32_t>{7, -2});
  CHECK(source->where(1) == folder.path() + "/t.tar: ./a/001");
}

TEST_CASE("folders, hidden files and files without an extension belong to no sample of a shard") {
  const ScratchFolder folder;
  const ByteVector bytes = tar_member("a", "", '5') + tar_member("a/README", "x") + tar_member("a/.DS_Store", "x") +
                           tar_member("a/._0.jpg", "x") + tar_member("a/__meta__.txt", "x") +
                           tar_member("a/0.txt", "one") + tar_member("a/1.txt", "") + tar_end();
  const auto source = open_tar({.paths = {folder.write("t.tar", bytes)}});
  REQUIRE(source->size() == 2);
  CHECK(fields_of(*source) == Texts{"txt: u8 [-1]"});
  CHECK(text_of(read_sample(*source, 0)[0]) == "one");
  CHECK(read_sample(*source, 1)[0].empty());
}

TEST_CASE("the json of a sample in a tar shard, as img2dataset writes it, is bytes like a text") {
  const ScratchFolder folder;
  const ByteVector bytes = tar_member("0.jpg", "A") + tar_member("0.json", "{\"w\": 3}") + tar_end();
  const auto source = open_tar({.paths = {folder.write("t.tar", bytes)}});
  CHECK(fields_of(*source) == Texts{"image: image", "json: u8 [-1]"});
  CHECK(text_of(read_sample(*source, 0)[1]) == "{\"w\": 3}");
}

TEST_CASE("several shards are one set, and fields are named by extension, whose last part says how it is read") {
  const ScratchFolder folder;
  folder.write("s-0.tar",
               tar_member("0.jpg", "A") + tar_member("0.Mask.PNG", "a") + tar_member("0.json", "{}") + tar_end());
  folder.write("s-1.tar", tar_member("0.mask.png", "b") + tar_member("0.jpg", "B") + tar_end());
  const auto source =
      open_tar({.paths = {folder.path() + "/s-*.tar"}, .fields = {{"mask", {"mask.png"}}, {"image", {"jpg", "png"}}}});
  CHECK(fields_of(*source) == Texts{"mask: image", "image: image"});
  CHECK(text_of(read_sample(*source, 0)[0]) + text_of(read_sample(*source, 0)[1]) == "aA");
  CHECK(text_of(read_sample(*source, 1)[0]) + text_of(read_sample(*source, 1)[1]) == "bB");
  CHECK(source->where(1) == folder.path() + "/s-1.tar: 0");
}

TEST_CASE("an array of a tar shard has the type and shape of the first sample's") {
  const ScratchFolder folder;
  const auto array = [](const char* name, float value) {
    return tar_member(
        name, tar_npy("<f4", "(2,)", text_of(FieldBytes(4)) + std::string(reinterpret_cast<const char*>(&value), 4)));
  };
  const auto source =
      open_tar({.paths = {folder.write("t.tar", array("0.x.npy", 2) + array("1.x.npy", 3) + tar_end())}});
  CHECK(fields_of(*source) == Texts{"x.npy: f32 [2]"});
  CHECK(all_values<float>(*source, 0) == std::vector<float>{0, 2, 0, 3});
  const ByteVector other = tar_member("1.x.npy", tar_npy("|u1", "(3,)", "abc"));
  CHECK(error_of_tar(folder, array("0.x.npy", 2) + other + tar_end()) ==
        folder.path() + "/t.tar: 1.x.npy: is u8 [3], but that of the first sample is f32 [2]");
  const double large = 1e39;
  const ByteVector wide =
      tar_member("0.x.npy", tar_npy("<f8", "()", std::string(reinterpret_cast<const char*>(&large), sizeof large)));
  CHECK(error_of_tar(folder, wide + tar_end()) ==
        folder.path() + "/t.tar: 0.x.npy: the number 1e+39 is too large for a 32-bit float");
  const ByteVector cut = tar_member("1.x.npy", tar_npy("<f4", "(2,)", "abc"));
  CHECK(contains(error_of_tar(folder, array("0.x.npy", 2) + cut + tar_end()),
                 "1.x.npy: the array: byte 128: f32 [2] needs 8"));
}

TEST_CASE("long names and sizes of GNU and of pax are read") {
  const ScratchFolder folder;
  const std::string long_name = std::string(150, 'd') + "/" + std::string(120, 'n') + ".txt";
  const std::string path = "path=" + std::string(150, 'p') + "/" + std::string(120, 'x') + ".txt\n",
                    record = std::to_string(path.size() + 4) + " " + path;
  ByteVector base256 = tar_member("big.txt", "12345");
  std::memset(base256.data() + 124, 0, 12);
  base256[124] = 0x80;
  base256[135] = 5;
  set_tar_checksum(base256);
  ByteVector wrong_size = tar_header("b.txt", 0);  // the pax size counts
  const ByteVector bytes = tar_member("././@LongLink", long_name + '\0', 'L') + tar_member("cut", "gnu") +
                           tar_member("pax_global_header", "20 comment=trainctl\n", 'g') +
                           tar_member("PaxHeaders/x", record, 'x') + tar_member("cut", "pax") + base256 +
                           tar_member("PaxHeaders/y", "10 size=3\n", 'x') + wrong_size + tar_member("", "abc") +
                           tar_end();
  ByteVector whole = bytes;
  // The data "abc" must follow the header at once, so the header that tar_member put before them is taken out.
  whole.erase(whole.end() - 1024 - 1024, whole.end() - 1024 - 512);
  const auto source = open_tar({.paths = {folder.write("t.tar", whole)}});
  Texts found;
  for (int64_t s = 0; s < source->size(); ++s) found.push_back(text_of(read_sample(*source, s)[0]));
  CHECK(found == Texts{"gnu", "pax", "12345", "abc"});
  CHECK(source->where(0) == folder.path() + "/t.tar: " + long_name.substr(0, long_name.size() - 4));
}

TEST_CASE("a prefix of ustar is part of the name") {
  const ScratchFolder folder;
  ByteVector member = tar_member("0.txt", "x");
  std::memcpy(member.data() + 345, "some/folder", 11);
  set_tar_checksum(member);
  CHECK(open_tar({.paths = {folder.write("t.tar", member + tar_end())}})->where(0) ==
        folder.path() + "/t.tar: some/folder/0");
}

TEST_CASE("a shard that is cut off at any place is an error that names the byte") {
  const ScratchFolder folder;
  for (size_t bytes = 0; bytes < kTwoSamples.size() - 512; bytes += 100) {
    CAPTURE(bytes);
    const std::string error =
        error_of_tar(folder, ByteVector(kTwoSamples.begin(), kTwoSamples.begin() + std::ptrdiff_t(bytes)));
    CHECK(contains(error, folder.path() + "/t.tar: byte "));
    CHECK(contains(error, "truncated"));
  }
}

TEST_CASE("a wrong size in a header is an error that names the header") {
  const ScratchFolder folder;
  const ByteVector first = tar_member("0.txt", "x");
  CHECK(contains(error_of_tar(folder, first + tar_header("1.txt", 1 << 20) + tar_end()),
                 "t.tar: byte 1,024: the header specifies 1,048,576 bytes of data, but the file has only 1,024 more"));
  // With a size that is too small, data are taken for the next header.
  CHECK(contains(error_of_tar(folder, tar_header("0.txt", 0) + ByteVector(512, 'y') + tar_end()),
                 "t.tar: byte 512: the checksum: "));
}

TEST_CASE("damaged headers of a tar file are errors with the byte") {
  const ScratchFolder folder;
  ByteVector changed = kTwoSamples;
  changed[1024 + 5] ^= 1;
  CHECK(contains(error_of_tar(folder, changed), "t.tar: byte 1,024: the checksum of the header is "));
  ByteVector letters = tar_member("0.txt", "x");
  std::memcpy(letters.data() + 124, "0000000zzzz", 11);
  set_tar_checksum(letters);
  CHECK(contains(error_of_tar(folder, letters + tar_end()),
                 "byte 0: the size: expected octal digits, found '0000000zzzz'"));
  CHECK(contains(error_of_tar(folder, tar_member("0.jpg", "", '2') + tar_end()), "'0.jpg' is a member of type '2'"));
  CHECK(contains(error_of_tar(folder, tar_member("x", "99 path=a\n", 'x') + tar_member("0.txt", "") + tar_end()),
                 "byte 512: expected a pax record of the form"));
  CHECK(contains(error_of_tar(folder, tar_member("x", "10 size=z\n", 'x') + tar_member("0.txt", "") + tar_end()),
                 "the pax size: expected digits, found 'z'"));
  CHECK(contains(error_of_tar(folder, tar_member("x", "9 path=a\n", 'x') + tar_end()), "expected the member that"));
  CHECK(contains(error_of_tar(folder, kTwoSamples + kTwoSamples), "data after the end of the archive"));
  CHECK(contains(error_of_tar(folder, gzip(kTwoSamples)), "t.tar: byte 0: it is compressed with gzip; gunzip it"));
}

TEST_CASE("samples of a tar shard with different members are named") {
  const ScratchFolder folder;
  const ByteVector whole = tar_member("0.jpg", "x") + tar_member("0.cls", "1");
  CHECK(contains(error_of_tar(folder, whole + tar_member("1.jpg", "x") + tar_end()),
                 "t.tar: 1: the sample has no .cls file for the field 'label'"));
  CHECK(contains(error_of_tar(folder, whole + tar_member("1.jpg", "x") + tar_member("1.png", "x") + tar_end()),
                 "1.png: the sample has several files for the field 'image'"));
  CHECK(contains(error_of_tar(folder, whole + tar_member("0.jpg", "x") + tar_end()),
                 "'0.jpg': sample '0' has two .jpg files"));
  CHECK(contains(error_of_tar(folder, whole + tar_member("1.jpg", "x") + tar_member("1.cls", "two") + tar_end()),
                 "t.tar: 1.cls: expected an integer of type i32, found 'two'"));
  CHECK(contains(error_of_tar(folder, whole + tar_member("1.jpg", "x") + tar_member("1.cls", "3000000000") + tar_end()),
                 "found '3000000000'"));
  CHECK(contains(error_of_tar(folder, whole + tar_member("1.jpg", "") + tar_member("1.cls", "1") + tar_end()),
                 "t.tar: 1.jpg: is empty"));
}

TEST_CASE("a member that a tar shard lacks, or that no source can read, is an error of the job") {
  const ScratchFolder folder;
  CHECK(contains(error_of_tar(folder, kTwoSamples, {{"mask", {"mask.png"}}}),
                 "dataset.fields.mask: " + folder.path() +
                     "/t.tar contains no .mask.png files (it contains .cls, "
                     ".jpg, .png)"));
  const ByteVector film = tar_member("0.jpg", "x") + tar_member("0.mp4", "film") + tar_end();
  const std::string error = error_of_tar(folder, film);
  CHECK(contains(error, "dataset.fields: " + folder.path() + "/t.tar contains .mp4 files, which are not supported"));
  CHECK(contains(error, "dataset.fields: {image: jpg, label: cls}"));
  CHECK(error_of_tar(folder, film, {{"image", {"jpg"}}}) == "no error");
  CHECK(contains(error_of_tar(folder, film, {{"image", {"mp4"}}}), "dataset.fields.image contains .mp4 files"));
  CHECK(contains(error_of_tar(folder, kTwoSamples, {{"x", {"jpg", "cls"}}}), "are different kinds of files"));
  CHECK(contains(error_of_tar(folder, tar_end()), "contains no samples"));
  folder.write("t.tar.gz", gzip(kTwoSamples));
  CHECK(contains(error_of([&] { open_tar({.paths = {folder.path() + "/t.tar.gz"}}); }), "gunzip it"));
}

TEST_CASE("a shard that is replaced during a run is an error, not other samples") {
  const ScratchFolder folder;
  Texts paths;
  for (int i = 0; i < 70; ++i)  // more than are open at once
    paths.push_back(folder.write(fmt::format("t{:02}.tar", i), tar_member("0.txt", fmt::format("{}", i)) + tar_end()));
  const auto source = open_tar({.paths = paths});
  for (int64_t s = 69; s >= 0; --s) CHECK(text_of(read_sample(*source, s)[0]) == std::to_string(s));
  folder.write("t69.tar", tar_end());
  CHECK(contains(error_of([&] { read_sample(*source, 69); }),
                 "t69.tar: had 2,048 bytes when the data set was opened, but now has 1,024"));
}
