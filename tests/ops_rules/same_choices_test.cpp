// Choices that decide in which order a GPU adds: they are restored from a file, or depend on sizes and the model of the
// GPU alone.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "engine/ops/cuda/hexadecimal.h"
#include "engine/ops/small_step/clusters_at_once.h"

namespace trainctl {

TEST_CASE("an algorithm is restored from the bytes of its text, and another text is refused") {
  std::array<uint64_t, 8> words{};
  for (size_t i = 0; i < words.size(); ++i) words[i] = 0x0123456789abcdefU * (2 * i + 1);
  const std::string text = hexadecimal(std::as_bytes(std::span(words)));
  CHECK(text.size() == 128);
  std::array<uint64_t, 8> read{};
  const auto into = std::as_writable_bytes(std::span(read));
  CHECK(read_hexadecimal(text, into));
  CHECK(read == words);
  CHECK(!read_hexadecimal(text.substr(1), into));
  CHECK(!read_hexadecimal(text + "00", into));
  CHECK(!read_hexadecimal("", into));
  CHECK(!read_hexadecimal("g" + text.substr(1), into));
  CHECK(!read_hexadecimal("A" + text.substr(1), into));
}

TEST_CASE("the clusters that a choice assumes fit into 16 multiprocessors of each group, on cards of every size") {
  CHECK(cuda::clusters_at_once(132, 2) == 64);
  CHECK(cuda::clusters_at_once(132, 4) == 32);
  CHECK(cuda::clusters_at_once(132, 8) == 16);
  CHECK(cuda::clusters_at_once(114, 8) == 14);
  CHECK(cuda::clusters_at_once(1, 2) == 0);
  CHECK(cuda::clusters_at_once(7, 2) == 3);
  for (int64_t processors = 1; processors <= 160; ++processors)
    for (const int64_t blocks : {1, 2, 4, 8}) CHECK(cuda::clusters_at_once(processors, blocks) * blocks <= processors);
}

}  // namespace trainctl
