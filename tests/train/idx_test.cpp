// Tests of IDX files: correct ones, and one test for each way in which a file can be broken.
#include "engine/train/data/idx.h"

#include <doctest/doctest.h>

#include "engine/base/error.h"
#include "tests/train/scratch_folder.h"

using namespace trainctl;

namespace {

std::string message_of(const ByteVector& bytes, int64_t max_bytes = kMaxIdxBytes) {
  try {
    parse_idx(bytes, "f", max_bytes);
  } catch (const EnvError& error) {
    return error.what();
  }
  return "no error";
}

ByteVector first(ByteVector bytes, size_t count) {
  bytes.resize(count);
  return bytes;
}

}  // namespace

TEST_CASE("an IDX file is read as its dims and its elements, unchanged") {
  const IdxArray array = parse_idx(idx_bytes({3, 2, 2}), "f");
  CHECK(array.header.type == kIdxU8);
  CHECK(array.header.dims == Shape{3, 2, 2});
  CHECK(array.body == ByteVector{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  CHECK(to_string(array.header) == "u8 [3, 2, 2]");
}

TEST_CASE("a gzip file has the same content as the raw file, whatever its size") {
  for (uint32_t count : {1u, 300u, 100000u, 3000000u}) {
    const ByteVector raw = idx_bytes({count});
    CHECK(parse_idx(gzip(raw), "f").body == parse_idx(raw, "f").body);
  }
}

TEST_CASE("elements of several bytes count as such") {
  ByteVector bytes = {0, 0, 0x0C, 1, 0, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8};
  CHECK(parse_idx(bytes, "f").header.body_bytes() == 8);
  bytes.pop_back();
  CHECK(message_of(bytes) == "f: byte 8: expected 8 bytes of i32 [2], found at most 7; download the file again");
}

TEST_CASE("a small file that would inflate to far more is refused before it does") {
  constexpr uint32_t kMiB = 1 << 20, kClaimed = 300;
  ByteVector start = idx_bytes({1});
  start = {0, 0, kIdxU8, 1, uint8_t(kClaimed * kMiB >> 24), uint8_t(kClaimed * kMiB >> 16), 0, 0};
  ByteVector bomb(size_t{2} << 20);
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 1, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  stream.next_out = bomb.data();
  stream.avail_out = uInt(bomb.size());
  ByteVector block = start;
  for (uint32_t i = 0; i <= kClaimed; ++i) {  // The file really has all bytes that its header claims.
    stream.next_in = block.data();
    stream.avail_in = uInt(block.size());
    REQUIRE(deflate(&stream, i < kClaimed ? Z_NO_FLUSH : Z_FINISH) == (i < kClaimed ? Z_OK : Z_STREAM_END));
    block.assign(kMiB, 0);
  }
  bomb.resize(stream.total_out);
  deflateEnd(&stream);
  CHECK(message_of(bomb).find("would inflate to 300.0 MiB of u8 [314572800], more than 100 times as much") !=
        std::string::npos);
  CHECK(message_of(bomb).find("gunzip it and use the raw file") != std::string::npos);
}

TEST_CASE("a header is read from only the first bytes of a file") {
  CHECK(parse_idx_header(first(idx_bytes({60000, 28, 28}), 100), "f").dims == Shape{60000, 28, 28});
  CHECK(parse_idx_header(first(gzip(idx_bytes({60000, 28, 28})), 100), "f").dims == Shape{60000, 28, 28});
}

TEST_CASE("a broken file is an EnvError that names file, byte, what was expected and what was found") {
  const ByteVector good = idx_bytes({4, 2});
  CHECK(message_of({}) ==
        "f: byte 0: expected an IDX magic number of 4 bytes, found the end of the file; download the file again");
  ByteVector bad = good;
  bad[0] = 1;
  CHECK(message_of(bad).find("f: byte 0: expected an IDX magic number (00 00") == 0);
  CHECK(message_of(bad).find("found 01 00 08 02") != std::string::npos);
  bad = good;
  bad[2] = 7;
  CHECK(message_of(bad).find("found 00 00 07 02") != std::string::npos);
  bad = good;
  bad[3] = 0;
  CHECK(message_of(bad) == "f: byte 3: expected 1 to 8 dims, found 0");
  bad = good;
  bad[7] = 0;
  CHECK(message_of(bad) == "f: byte 4: dim 0: expected a size of at least 1, found 0");
  CHECK(message_of(first(good, 10)).find("f: byte 10: expected the 4 bytes of dim 1, found the end") == 0);
  CHECK(message_of(first(good, 15)) ==
        "f: byte 12: expected 8 bytes of u8 [4, 2], found at most 3; download the file again");
  bad = good;
  bad.push_back(0);
  CHECK(message_of(bad) == "f: byte 20: expected the end of the file after 8 bytes of u8 [4, 2], found more bytes");
}

TEST_CASE("dims whose product is too large or overflows are refused before anything is allocated") {
  const ByteVector huge = {0, 0, 8, 4, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
  CHECK(message_of(huge).find("f: byte 8: dim 1 of 4,294,967,295 makes the file larger than the limit of 16.0 GiB") ==
        0);
  CHECK(message_of(idx_bytes({100}), 99).find("larger than the limit of 99 B") != std::string::npos);
  // This gzip file of about 30 bytes claims to contain 4 GB.
  CHECK(message_of(gzip({0, 0, 8, 1, 255, 255, 255, 255, 1, 2, 3})).find("found at most") != std::string::npos);
}

TEST_CASE("a broken gzip file is distinguished from a broken IDX file") {
  const ByteVector good = gzip(idx_bytes({100, 10}));
  ByteVector bad = good;
  bad[good.size() - 6] ^= 1;  // This byte belongs to the CRC in the trailer.
  CHECK(message_of(bad).find("damaged gzip data: incorrect data check") != std::string::npos);
  bad = good;
  bad[12] ^= 0xff;
  CHECK(message_of(bad).find("damaged gzip data") != std::string::npos);
  CHECK(message_of(first(good, good.size() - 3)).find("expected the gzip trailer, found the end") != std::string::npos);
  CHECK(message_of(first(good, good.size() / 2)).find("found the end of the inflated data") != std::string::npos);
  bad = good;
  bad.push_back(7);
  CHECK(message_of(bad).find("expected the end of the gzip file, found 1 more bytes") != std::string::npos);
}
