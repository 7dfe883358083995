// Tests of the published rules of safetensors, one by one, and of files that are written and read again.
#include "engine/train/files/safetensors.h"

#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <numeric>

#include "engine/base/error.h"
#include "engine/train/files/digest.h"
#include "engine/train/files/input_file.h"
#include "tests/train/scratch_folder.h"

using namespace trainctl;

namespace {

ByteVector file_of(const std::string& header, size_t data_bytes, uint64_t length) {
  ByteVector bytes(8 + header.size() + data_bytes);
  std::memcpy(bytes.data(), &length, 8);
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  return bytes;
}
ByteVector file_of(const std::string& header, size_t data_bytes = 0) {
  return file_of(header, data_bytes, header.size());
}

SafetensorsHeader parse(const ByteVector& bytes) {
  return parse_safetensors_header(bytes, static_cast<int64_t>(bytes.size()), "x.safetensors");
}
SafetensorsHeader parse(const std::string& header, size_t data_bytes = 0) { return parse(file_of(header, data_bytes)); }

void check_refused(const ByteVector& bytes, const std::string& message) {
  CHECK_THROWS_WITH_AS(parse(bytes), doctest::Contains(message.c_str()), EnvError);
  CHECK_THROWS_WITH_AS(parse(bytes), doctest::Contains("x.safetensors: "), EnvError);
}
void check_refused(const std::string& header, size_t data_bytes, const std::string& message) {
  CAPTURE(header);
  check_refused(file_of(header, data_bytes), message);
}

/// A header of one F32 [2, 3] with these fields in place of its own.
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

std::string two(const std::string& first, const std::string& second) {
  return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + first +
         R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}";
}

}  // namespace

TEST_CASE("a header gives name, type, shape and place of each tensor, in the order of the data") {
  const SafetensorsHeader header =
      parse(R"({"b":{"dtype":"F32","shape":[2,3],"data_offsets":[2,26]},"__metadata__":{"format":"pt"},)"
            R"("a":{"shape":[],"data_offsets":[0,2],"dtype":"BF16"}}   )",
            26);
  REQUIRE(header.entries.size() == 2);
  CHECK(header.entries[0].name == "a");
  CHECK(header.entries[0].type == StoredType::bf16);
  CHECK(header.entries[0].shape == Shape{});
  CHECK(header.entries[1].name == "b");
  CHECK(header.entries[1].shape == Shape{2, 3});
  CHECK(header.entries[1].begin == 2);
  CHECK(header.entries[1].end == 26);
  CHECK(header.metadata == std::map<std::string, std::string>{{"format", "pt"}});
}

TEST_CASE("null metadata count as none, as in the safetensors library") {
  CHECK(parse(R"({"__metadata__":null})").metadata.empty());
}

TEST_CASE("a file without tensors, and a tensor without elements, are files") {
  CHECK(parse("{}").entries.empty());
  CHECK(parse(one(R"("F32")", "[0,3]", "[0,0]")).entries[0].bytes() == 0);
  CHECK(
      parse(
          R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
          1)
          .entries.size() == 2);
}

TEST_CASE("every published dtype is known, with its size") {
  const std::vector<std::pair<std::string, int>> types = {
      {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
      {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
      {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
      {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}};
  for (const auto& [name, bits] : types) {
    CAPTURE(name);
    const int64_t bytes = bits;  // of 8 elements
    const SafetensorsHeader header =
        parse(one("\"" + name + "\"", "[8]", "[0," + std::to_string(bytes) + "]"), static_cast<size_t>(bytes));
    CHECK(to_string(header.entries[0].type) == name);
    CHECK(bits_of(header.entries[0].type) == bits);
  }
}

TEST_CASE("a file shorter than its length field is refused") {
  check_refused(ByteVector{}, "has 0 bytes");
  check_refused(ByteVector{1, 0, 0}, "has 3 bytes, but a safetensors file begins with the length of its header");
}

TEST_CASE("a header of more than 100,000,000 bytes is refused, whatever the file's size") {
  check_refused(file_of("{}", 0, 100'000'001), "expected the length of a header, at most 100,000,000, found 100000001");
  check_refused(file_of("{}", 0, ~uint64_t{0}), "at most 100,000,000");
}

TEST_CASE("a header longer than the file is refused") {
  check_refused(file_of("{}", 0, 3), "the header has 3 bytes, 11 with its length, but the file has only 10");
}

TEST_CASE("a header begins with '{' and is followed only by blanks") {
  check_refused(" {}", 0, "byte 8: the header must begin with '{'");
  check_refused("", 0, "must begin with '{'");
  check_refused("[]", 0, "must begin with '{'");
  check_refused("{}\n", 0, "only blanks may follow");
  check_refused("{} x", 0, "only blanks may follow");
  CHECK(parse("{}      ").entries.empty());
}

TEST_CASE("a header that is not JSON is refused with the byte") {
  check_refused("{\"a\" 3}", 0, "byte 14: the header is not valid JSON");
  check_refused("{\"\xff\":{}}", 0, "the header is not valid JSON");
  check_refused("{}{}", 0, "is not valid JSON");
  check_refused(one(R"("F32")", "[1]", "[0,1e999]"), 4, "the header is not valid JSON: number overflow");
}

TEST_CASE("a header nested deeper than a tensor's shape is refused") {
  check_refused(R"({"a":{"shape":[[[[1]]]]}})", 0, "nested too deeply");
  check_refused("{\"a\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}", 0, "nested too deeply");
}

TEST_CASE("a duplicate name of a tensor or of a field is refused") {
  const std::string a = R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  check_refused("{" + a + "," + a + "}", 0, "contains the name 'a' twice");
  check_refused(R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0, "'dtype' twice");
  check_refused(R"({"__metadata__":{"k":"1","k":"2"}})", 0, "'k' twice");
}

TEST_CASE("metadata are texts") {
  check_refused(R"({"__metadata__":[]})", 0, "__metadata__: expected an object of strings, found array");
  check_refused(R"({"__metadata__":{"k":1}})", 0, "__metadata__: 'k': expected a string, found number");
  check_refused(R"({"__metadata__":{"k":{}}})", 0, "expected a string, found object");
}

TEST_CASE("an unknown dtype is refused") {
  check_refused(one(R"("F12")", "[0]", "[0,0]"), 0,
                "tensor 'a': dtype: expected one of the format, such as F32, found 'F12'");
  check_refused(one("3", "[0]", "[0,0]"), 0, "dtype: expected one of the format");
}

TEST_CASE("a missing field is refused") {
  check_refused(R"({"a":{"shape":[],"data_offsets":[0,4]}})", 4, "tensor 'a': has no field 'dtype'");
  check_refused(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, "has no field 'shape'");
  check_refused(R"({"a":{"dtype":"F32","shape":[]}})", 4, "has no field 'data_offsets'");
  check_refused(R"({"a":3})", 0, "tensor 'a': expected an object, found number");
}

TEST_CASE("sizes and offsets are integers of at least 0") {
  check_refused(one(R"("F32")", "[-1]", "[0,0]"), 0, "shape: expected an integer of at least 0, found -1");
  check_refused(one(R"("F32")", "[1.0]", "[0,4]"), 4, "found 1.0");
  check_refused(one(R"("F32")", "[18446744073709551615]", "[0,4]"), 4, "found 18446744073709551615");
  check_refused(one(R"("F32")", "[1]", R"(["0",4])"), 4, "data_offsets: expected an integer");
  check_refused(one(R"("F32")", "[1]", "[0,4,8]"), 4, "data_offsets: expected 2 numbers, found 3");
  check_refused(one(R"("F32")", "3", "[0,4]"), 4, "shape: expected a list, found number");
}

TEST_CASE("shape times size must be the bytes of the offsets") {
  check_refused(one(R"("F32")", "[2,3]", "[0,20]"), 20, "F32 of [2, 3] has 24 bytes, but data_offsets [0, 20] are 20");
  check_refused(one(R"("F32")", "[2,3]", "[4,0]"), 24, "begins at 4, after its end at 0");
  check_refused(one(R"("F4")", "[3]", "[0,1]"), 1, "3 elements of 4 bits are not a whole number of bytes");
}

TEST_CASE("a shape that overflows is refused, also with a dim of 0 behind it") {
  check_refused(one(R"("F32")", "[4294967296,4294967296]", "[0,0]"), 0, "more elements than a file can store");
  check_refused(one(R"("F32")", "[4294967296,4294967296,0]", "[0,0]"), 0, "more elements than a file can store");
  check_refused(one(R"("F64")", "[2305843009213693952]", "[0,0]"), 0, "more elements than a file can store");
}

TEST_CASE("tensors that overlap are refused") {
  check_refused(two("[0,4]", "[2,6]"), 6,
                "tensor 'b': data_offsets: expected to begin at 4, where the previous tensor ends, found 2: an "
                "overlap");
  check_refused(two("[0,4]", "[0,4]"), 4, "an overlap");
}

TEST_CASE("holes are refused, at the start and between tensors") {
  check_refused(two("[0,4]", "[5,9]"), 9, "expected to begin at 4, where the previous tensor ends, found 5: a gap");
  check_refused(two("[1,5]", "[5,9]"), 9, "tensor 'a': data_offsets: expected to begin at 0");
}

TEST_CASE("data that end before or after the last tensor are refused") {
  check_refused(two("[0,4]", "[4,8]"), 7, "have 8 bytes of data, but the file has 7 after its header: it is truncated");
  check_refused(two("[0,4]", "[4,8]"), 9, "the file has 9 after its header: it is too long");
  check_refused("{}", 1, "it is too long");
}

TEST_CASE("a written file has its data at a multiple of 8, wide types first, and reads back by ranges") {
  const ScratchFolder scratch;
  const std::string path = scratch.path() + "/w.safetensors";
  SafetensorsWriter writer(path,
                           {{.name = "half", .type = StoredType::bf16, .shape = {3}},
                            {.name = "byte", .type = StoredType::u8, .shape = {5}},
                            {.name = "wide", .type = StoredType::f64, .shape = {2, 2}},
                            {.name = "\"quoted\" \xc3\xa9", .type = StoredType::f32, .shape = {}}},
                           {{"made", "by a test"}});
  CHECK(writer.header().data_at % 8 == 0);
  CHECK(writer.header().entries[0].name == "wide");
  CHECK(writer.header().entries[3].name == "byte");
  ByteVector data(32 + 4 + 6 + 5);
  std::iota(data.begin(), data.end(), uint8_t{1});
  for (size_t i = 0; i < 4; ++i) {
    const SafetensorsEntry& entry = writer.header().entries[i];
    writer.write(i, 0, std::span(data).subspan(static_cast<size_t>(entry.begin), static_cast<size_t>(entry.bytes())));
  }
  const FileDigest digest = writer.finish();
  const std::string text = read_whole_file(path);
  CHECK(digest.bytes == static_cast<int64_t>(text.size()));
  CHECK(digest.xxh128 == digest_of(text));
  const SafetensorsFile file(path);
  CHECK(file.header().metadata.at("made") == "by a test");
  REQUIRE(file.find("\"quoted\" \xc3\xa9") != nullptr);
  CHECK(file.find("none") == nullptr);
  ByteVector part(3);
  file.read(*file.find("wide"), 5, part);
  CHECK(part == ByteVector{6, 7, 8});
}

TEST_CASE("ranges written in any order give the same file and digest as in order") {
  const ScratchFolder scratch;
  ByteVector data(1000);
  std::iota(data.begin(), data.end(), uint8_t{0});
  std::vector<FileDigest> digests;
  for (const std::vector<int>& order : {std::vector{0, 1, 2, 3, 4}, {4, 3, 2, 1, 0}, {0, 2, 1, 4, 3}}) {
    SafetensorsWriter writer(scratch.path() + "/o.safetensors",
                             {{.name = "x", .type = StoredType::u8, .shape = {1000}}});
    for (const int part : order)
      writer.write(0, part * 200, std::span(data).subspan(static_cast<size_t>(part) * 200, 200));
    digests.push_back(writer.finish());
    CHECK(digests.back().xxh128 == digest_of(read_whole_file(scratch.path() + "/o.safetensors")));
  }
  CHECK(digests[1].xxh128 == digests[0].xxh128);
  CHECK(digests[2].xxh128 == digests[0].xxh128);
}

TEST_CASE("a file that lacks bytes is not finished") {
  const ScratchFolder scratch;
  SafetensorsWriter writer(scratch.path() + "/o.safetensors", {{.name = "x", .type = StoredType::u8, .shape = {10}}});
  writer.write(0, 0, ByteVector(9));
  CHECK_THROWS_AS(writer.finish(), InternalError);
}

TEST_CASE("a file that cannot be opened or written is an error with its path and the reason") {
  CHECK_THROWS_WITH_AS(SafetensorsFile("/nonexistent/x"),
                       doctest::Contains("/nonexistent/x: cannot be read: No such file"), EnvError);
  CHECK_THROWS_WITH_AS(SafetensorsFile("/dev/null"), doctest::Contains("not a regular file"), EnvError);
  CHECK_THROWS_WITH_AS(SafetensorsFile("/"), doctest::Contains("not a regular file"), EnvError);
  CHECK_THROWS_WITH_AS(SafetensorsWriter("/dev/full", {}),
                       doctest::Contains("/dev/full: cannot be written: No space left"), EnvError);
  CHECK_THROWS_WITH_AS(SafetensorsWriter("/nonexistent/x", {}), doctest::Contains("/nonexistent/x: cannot be created"),
                       EnvError);
}

TEST_CASE("a file that became shorter after it was opened is an error, not data") {
  const ScratchFolder scratch;
  const std::string path = scratch.write("s.safetensors", file_of(one(R"("U8")", "[100]", "[0,100]"), 100));
  const SafetensorsFile file(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 40);
  ByteVector data(100);
  CHECK_THROWS_WITH_AS(file.read(file.header().entries[0], 0, data), doctest::Contains("40 more bytes are expected"),
                       EnvError);
}
