// Choices that decide in which order a GPU adds: they depend on sizes and the model of the GPU, not on what was
// measured, on one card or in one process.
#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "engine/ops/cuda/fastest.h"
#include "engine/ops/cuda/hexadecimal.h"
#include "engine/ops/small_step/clusters_at_once.h"

namespace trainctl {
namespace {

/// A candidate as measurements see it; negative milliseconds: it does not run.
struct Candidate {
  float milliseconds;
  std::optional<uint64_t> bits;
};

size_t chosen(const std::vector<Candidate>& candidates) {
  return cuda::fastest_with_same_bits(
      candidates.size(), [&](size_t i) { return candidates[i].bits; },
      [&](size_t i) { return candidates[i].milliseconds; });
}

}  // namespace

TEST_CASE("whatever is measured, an algorithm with the bits of the first suggestion is chosen") {
  CHECK(chosen({{3, 7}, {1, 8}, {2, 7}}) == 2);
  CHECK(chosen({{3, 7}, {1, 8}, {4, 7}}) == 0);
  CHECK(chosen({{1, 7}, {3, 8}, {2, 7}}) == 0);
  CHECK(chosen({{3, 0}, {1, 1}, {2, 0}}) == 2);
  const std::vector<uint64_t> bits = {5, 6, 5, 9, 6, 5};
  for (int drawn = 0; drawn < 720; ++drawn) {  // every order of times that differ by more than noise
    std::vector<Candidate> candidates;
    std::vector<float> times = {1, 2, 4, 8, 16, 32};
    int left = drawn;
    for (size_t i = 0; i < bits.size(); ++i) {
      const auto at = static_cast<size_t>(left) % times.size();
      left /= static_cast<int>(times.size());
      candidates.push_back({times[at], bits[i]});
      times.erase(times.begin() + static_cast<std::ptrdiff_t>(at));
    }
    CHECK(bits[chosen(candidates)] == bits[0]);
  }
}

TEST_CASE("the bits are those of the first suggestion that runs, and without one the first suggestion is taken") {
  CHECK(chosen({{1, std::nullopt}, {3, 7}, {1, 8}, {2, 7}}) == 3);
  CHECK(chosen({{1, std::nullopt}, {-1, 7}, {1, 8}}) == 1);
  CHECK(chosen({{1, std::nullopt}, {1, std::nullopt}}) == 0);
  CHECK(chosen({{-1, 7}, {-1, 7}}) == 0);
}

TEST_CASE("a candidate with other bits is not measured") {
  std::vector<size_t> measured;
  cuda::fastest_with_same_bits(
      3, [](size_t i) { return std::optional<uint64_t>(i == 1 ? 8 : 7); },
      [&](size_t i) {
        measured.push_back(i);
        return 1.0f;
      });
  CHECK(measured == std::vector<size_t>{0, 2});
}

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
