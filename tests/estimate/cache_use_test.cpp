// What of a program's operands is in a cache.
#include "engine/estimate/cache_use.h"

#include <doctest/doctest.h>

using namespace trainctl;

namespace {

constexpr int64_t kKiB = 1024;

Operand bytes(int64_t offset, int64_t count) {
  Operand operand;
  operand.offset = offset;
  operand.shape = {count / 4};
  return operand;
}

Program program_of(const std::vector<std::pair<Operand, Operand>>& kernels) {
  Program program;
  for (const auto& [in, out] : kernels) {
    Instruction& kernel = program.instructions.emplace_back();
    kernel.inputs = {in};
    kernel.outputs = {out};
  }
  return program;
}

}  // namespace

TEST_CASE("what a kernel has written is in the cache until as much else has been touched") {
  const Operand a = bytes(0, kKiB), b = bytes(kKiB, kKiB), far = bytes(64 * kKiB, 8 * kKiB);
  const Operand far_again = bytes(72 * kKiB, 8 * kKiB);
  const Program program = program_of({{a, b}, {b, a}, {far, far_again}, {b, b}});
  // The first finds what the last has touched; a was touched too long ago.
  CHECK(parts_in_cache(program, {4.0 * kKiB}) == std::vector<double>{0.5, 1, 0, 0});
  CHECK(parts_in_cache(program, {1e9}) == std::vector<double>{1, 1, 1, 1});
  CHECK(parts_in_cache(program, {}) == std::vector<double>{0, 0, 0, 0});
}

TEST_CASE("of an operand that was touched in part, that part is in the cache") {
  const Operand whole = bytes(0, 4 * kKiB), middle = bytes(kKiB, kKiB), far = bytes(64 * kKiB, 32 * kKiB);
  const Program program = program_of({{whole, whole}, {far, far}, {middle, middle}, {whole, whole}});
  CHECK(parts_in_cache(program, {16.0 * kKiB}) == std::vector<double>{1, 0, 0, 0.25});
}
