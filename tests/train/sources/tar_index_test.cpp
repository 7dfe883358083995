// Tests of the index beside a tar shard: what it saves, how large it is, and that an index of another file is refused.
#include "engine/train/data/sources/tar_index.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/train/data/sources/tar.h"
#include "tests/train/sources/read_source.h"
#include "tests/train/sources/tar_bytes.h"

using namespace trainctl;

TEST_CASE("the index beside a shard gives the same samples, without reading headers") {
  const ScratchFolder folder;
  const std::string tar = folder.write("t.tar", kTwoSamples);
  CHECK(write_tar_index(tar, tar_index_path(tar)) == 2);
  const auto source = open_tar({.paths = {tar}});
  CHECK(source->size() == 2);
  CHECK(source->where(0) == tar + ": ./a/000");
  CHECK(text_of(read_sample(*source, 1)[0]) == "PNG1");
  CHECK(all_values<int32_t>(*source, 1) == std::vector<int32_t>{7, -2});
}

TEST_CASE("an index of another tar file is named, and so is a damaged one") {
  const ScratchFolder folder;
  const std::string tar = folder.write("t.tar", kTwoSamples), idx = tar_index_path(tar);
  write_tar_index(tar, idx);
  const auto open = [&] { return error_of([&] { open_tar({.paths = {tar}}); }); };
  CHECK(open() == "no error");
  const timespec times[] = {{1000, 0}, {1000, 0}};
  REQUIRE(utimensat(AT_FDCWD, tar.c_str(), times, 0) == 0);
  CHECK(contains(open(), idx + ": belongs to a tar file of"));
  CHECK(contains(open(), "write it again: trainctl data index"));
  folder.write("t.tar", kTwoSamples + ByteVector(512));
  CHECK(contains(open(), "belongs to a tar file of"));
  write_tar_index(tar, idx);
  CHECK(open() == "no error");
  REQUIRE(truncate(idx.c_str(), 100) == 0);
  CHECK(contains(open(), "t.tar.idx: has 100 bytes, which does not match"));
  REQUIRE(truncate(idx.c_str(), 3) == 0);
  CHECK(contains(open(), "t.tar.idx: is not an index"));
}

TEST_CASE("an index takes 12 bytes for each file of a sample") {
  const ScratchFolder folder;
  ByteVector bytes;
  for (int i = 0; i < 1000; ++i)
    bytes = bytes + tar_member(fmt::format("{}.jpg", i), "x") + tar_member(fmt::format("{}.cls", i), "1");
  const std::string tar = folder.write("t.tar", bytes + tar_end());
  CHECK(write_tar_index(tar, tar_index_path(tar)) == 1000);
  CHECK(std::filesystem::file_size(tar_index_path(tar)) == 56 + 8 + 24'000);
  CHECK(open_tar({.paths = {tar}})->memory_bytes() < 2000);  // it is mapped
}
