// Frozen weights in 4 and 8 bits.
#include "engine/graph/packing.h"

#include <doctest/doctest.h>

#include <vector>

using namespace trainctl;

namespace {

std::vector<float> row_of(int64_t columns) {
  std::vector<float> row;
  for (int64_t i = 0; i < columns; ++i) row.push_back(static_cast<float>((i * 7919 + 13) % 1009) / 504.5f - 1.0f);
  return row;
}

std::vector<uint32_t> packed(Packing packing, const float* values, int64_t columns) {
  std::vector<uint32_t> words(static_cast<size_t>(columns / kPackedBlock * words_per_block(packing)));
  pack_blocks(packing, values, columns / kPackedBlock, words.data());
  return words;
}

std::vector<float> rounded(Packing packing, std::vector<float> row) {
  round_as_stored(packing, row.data(), static_cast<int64_t>(row.size()));
  return row;
}

}  // namespace

TEST_CASE("the parts of a row that is cut between blocks are stored as in the whole row") {
  constexpr int64_t kColumns = 6 * kPackedBlock;
  const std::vector<float> row = row_of(kColumns);
  for (const Packing packing : {Packing::int8, Packing::nf4}) {
    const std::vector<uint32_t> whole = packed(packing, row.data(), kColumns);
    CHECK(Shape{2, static_cast<int64_t>(whole.size())} == packed_shape({2, kColumns}, packing));
    CHECK(unpacked_shape(packed_shape({2, kColumns}, packing), packing) == Shape{2, kColumns});
    for (const int64_t ways : {2, 3, 6}) {
      std::vector<uint32_t> parts;
      for (int64_t part = 0; part < ways; ++part)
        for (const uint32_t word : packed(packing, row.data() + part * kColumns / ways, kColumns / ways))
          parts.push_back(word);
      CHECK(parts == whole);
    }
  }
}

TEST_CASE("the largest magnitude of a block is stored exactly, and every element within half a step") {
  const std::vector<float> row = row_of(kPackedBlock);
  for (const Packing packing : {Packing::int8, Packing::nf4}) {
    const std::vector<float> stored = rounded(packing, row);
    float most = 0;
    for (const float v : row) most = std::max(most, std::fabs(v));
    const float step = packing == Packing::int8 ? most / 127 : 0.31f * most;  // between the codes -1 and -0.696
    for (size_t i = 0; i < row.size(); ++i) {
      if (std::fabs(row[i]) == most) CHECK(stored[i] == doctest::Approx(row[i]));
      CHECK(std::fabs(stored[i] - row[i]) <= 0.5001f * step);
    }
  }
}

TEST_CASE("a block of zeros stays one, and nf4 keeps its own values") {
  for (const Packing packing : {Packing::bf16, Packing::int8, Packing::nf4})
    CHECK(rounded(packing, std::vector<float>(kPackedBlock)) == std::vector<float>(kPackedBlock));
  std::vector<float> codes(kPackedBlock);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = 3 * kNf4Codes[i % kNf4Codes.size()];
  CHECK(rounded(Packing::nf4, codes) == codes);
}

TEST_CASE("nf4 takes the nearest code, of two that are equally near the lower") {
  for (uint32_t code = 0; code < 16; ++code) CHECK(nf4_code(kNf4Codes[code]) == code);
  for (uint32_t code = 0; code < 15; ++code) {
    const float between = (kNf4Codes[code] + kNf4Codes[code + 1]) / 2;
    CHECK(nf4_code(between) == code);
    CHECK(nf4_code(std::nextafter(between, 2.0f)) == code + 1);
  }
}
