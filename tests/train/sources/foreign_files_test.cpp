// Tests that the sources read what Python's tarfile, csv, numpy and safetensors have written (make_files.py).
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/wait.h>

#include <numeric>

#include "engine/train/data/sources/arrays.h"
#include "engine/train/data/sources/csv.h"
#include "engine/train/data/sources/tar.h"
#include "engine/train/data/sources/tar_index.h"
#include "tests/skip.h"
#include "tests/train/sources/read_source.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

/// Makes the files. Returns false, and skips the test, if a library is missing. The environment of ./bootstrap peers
/// has all of them.
bool make_files(const std::string& kind, const ScratchFolder& folder) {
  const fs::path source = TRAINCTL_SOURCE_DIR, peers = source / "build/peers/bin/python3";
  const std::string python = fs::exists(peers) ? peers.string() : "python3";
  const int status = std::system(
      fmt::format("{} {} {} {}", python, (source / "tests/train/sources/make_files.py").string(), kind, folder.path())
          .c_str());
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (code == 77 || code == 127) {
    skip_test("no Python with " + kind);
    return false;
  }
  REQUIRE(code == 0);
  return true;
}

}  // namespace

TEST_CASE("tar files of Python in the ustar and GNU and pax formats are read, with an index and without") {
  const ScratchFolder folder;
  if (!make_files("tar", folder)) return;
  for (const char* name : {"ustar", "gnu", "pax"})
    for (const bool with_index : {false, true}) {
      CAPTURE(name);
      const std::string tar = folder.path() + "/" + name + ".tar";
      if (with_index) CHECK(write_tar_index(tar, tar_index_path(tar)) == 40);
      const auto source = open_tar({.paths = {tar}, .label_type = ElementType::i64});
      CHECK(fields_of(*source) == Texts{"image: image", "label: i64 []", "txt: u8 [-1]"});
      REQUIRE(source->size() == 40);
      for (int64_t i = 0; i < 40; ++i) {
        const auto sample = read_sample(*source, i);
        CHECK(text_of(sample[0]) == std::string(size_t(i * 37 + 1), char(i)));
        CHECK(values_of<int64_t>(sample[1])[0] == i * i - 5);
        CHECK(sample[2].size() == size_t(2 * i));
        CHECK(source->where(i).ends_with(fmt::format("n{:03}", i)));
      }
    }
}

TEST_CASE("tables of Python with every way of quoting are read") {
  const ScratchFolder folder;
  if (!make_files("csv", folder)) return;
  for (const char* name : {"minimal", "all", "text"})
    for (const char delimiter : {',', ';', '\t'}) {
      CAPTURE(name);
      const auto source = open_csv(
          {.paths = {fmt::format("{}/{}{}.csv", folder.path(), name, int(delimiter))},
           .fields =
               {{.name = "number", .columns = {"number"}},
                {.name = "label", .columns = {"a,b;c\td"}, .scalar = true, .type = ElementType::i32, .words = true},
                {.name = "integer", .columns = {"say \"x\""}, .type = ElementType::i64}},
           .delimiter = delimiter});
      REQUIRE(source->size() == 200);
      CHECK(source->class_names().at(2) == "w2, \"2\"\r\n;\t");
      for (int64_t i = 0; i < 200; ++i) {
        const auto sample = read_sample(*source, i);
        CHECK(values_of<float>(sample[0])[0] == static_cast<float>(double(i) * 0.1 - 3));
        CHECK(values_of<int32_t>(sample[1])[0] == i % 3);
        CHECK(values_of<int64_t>(sample[2])[0] == i - 100);
      }
    }
}

TEST_CASE("arrays that NumPy saves are read or refused by the stated rule") {
  const ScratchFolder folder;
  if (!make_files("numpy", folder)) return;
  const auto open = [&](const std::string& name) {
    return open_npy({.fields = {{"x", {folder.path() + "/" + name + ".npy"}}}});
  };
  const auto range = [&]<class T>(const char* name, const char* field, T) {
    CAPTURE(name);
    std::vector<T> expected(24);
    std::iota(expected.begin(), expected.end(), T{});
    CHECK(fields_of(*open(name)) == Texts{field});
    CHECK(all_values<T>(*open(name), 0) == expected);
  };
  range("u1", "x: u8 [3, 2]", uint8_t{});
  range("u2", "x: u16 [3, 2]", uint16_t{});
  for (const char* name : {"i1", "i2", "i4"}) range(name, "x: i32 [3, 2]", int32_t{});
  for (const char* name : {"u4", "i8"}) range(name, "x: i64 [3, 2]", int64_t{});
  for (const char* name : {"f2", "f4", "f8"}) range(name, "x: f32 [3, 2]", float{});
  CHECK(values_of<uint8_t>(read_sample(*open("b1"), 3)[0]) == std::vector<uint8_t>{1, 0, 1, 0, 1, 0});
  CHECK(all_values<int32_t>(*open("version2"), 0) == std::vector<int32_t>{0, 1, 2, 3, 4});
  CHECK(contains(error_of([&] { open("fortran"); }), "numpy.ascontiguousarray"));
  for (const char* name : {"objects", "texts", "big"})
    CHECK(contains(error_of([&] { open(name); }), "are not supported: expected little-endian"));
  CHECK(contains(error_of([&] { open("records"); }), "structured arrays are not supported"));
  for (const char* name : {"stored", "deflated"}) {
    const auto source = open_npz({.paths = {folder.path() + "/" + name + ".npz"}});
    REQUIRE(source->size() == 100);
    CHECK(values_of<float>(read_sample(*source, 99)[0]) == std::vector<float>{297, 298, 299});
    CHECK(values_of<int64_t>(read_sample(*source, 99)[1]) == std::vector<int64_t>{99});
  }
}

TEST_CASE("tensors that the safetensors library saves are read") {
  const ScratchFolder folder;
  if (!make_files("safetensors", folder)) return;
  const auto source =
      open_safetensors({.paths = {folder.path() + "/t.safetensors"}, .fields = {{"x", "x"}, {"y", "y"}, {"h", "h"}}});
  CHECK(fields_of(*source) == Texts{"x: f32 [3]", "y: i64 []", "h: f32 []"});
  CHECK(values_of<float>(read_sample(*source, 3)[0]) == std::vector<float>{9, 10, 11});
  CHECK(all_values<int64_t>(*source, 1) == std::vector<int64_t>{0, 1, 2, 3});
  CHECK(all_values<float>(*source, 2) == std::vector<float>{0, 1, 2, 3});
}
