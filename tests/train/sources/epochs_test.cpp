// Tests that the ranks of a run see each sample of a real set exactly once per epoch, over resumes too, in the order
// of one rank that was never interrupted.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "engine/train/data/loader.h"
#include "tests/train/sources/read_source.h"
#include "tests/train/sources/tar_bytes.h"

using namespace trainctl;

namespace {

constexpr int64_t kEpochsSamples = 96, kBatch = 16, kSteps = kEpochsSamples / kBatch;

/// A data set of one shard. The text of a sample is its number.
DatasetSpec one_shard(const ScratchFolder& folder) {
  ByteVector bytes;
  for (int64_t i = 0; i < kEpochsSamples; ++i)
    bytes = bytes + tar_member(fmt::format("{:03}.txt", i), fmt::format("{:03}", i));
  DatasetSpec spec;
  spec.type = "tar";
  spec.paths = {folder.write("one.tar", bytes + tar_end())};
  spec.fields = {{"text", {"txt"}}};
  TransformSpec tokens;
  tokens.name = "tokenize_bytes";
  tokens.attrs.set("length", int64_t{3});
  spec.transforms = {tokens};
  spec.batch = kBatch;
  spec.shuffle = true;
  return spec;
}

Program of_rank(int rank, int ranks) {
  Program program;
  Instruction load;
  load.opcode = Opcode::load;
  load.op = "text";
  Operand rows;
  rows.dtype = DType::i32;
  rows.global_shape = {kBatch, 3};
  rows.global_offset = {kBatch / ranks * rank, 0};
  rows.shape = {kBatch / ranks, 3};
  load.outputs = {rows};
  program.instructions = {load};
  return program;
}

using Samples = std::vector<int>;

/// The samples of each step in [first, end), in the order of the batch, as `ranks` ranks with `workers` workers each
/// read them.
Samples seen(const DatasetSpec& spec, int ranks, int workers, int64_t first, int64_t end) {
  Samples all(static_cast<size_t>((end - first) * kBatch));
  DatasetSpec own = spec;
  own.workers = workers;
  for (int rank = 0; rank < ranks; ++rank) {
    const Program program = of_rank(rank, ranks);
    Loader loader(open_dataset(own, 3), own, program, 3, {.first_step = first, .num_steps = end - first});
    for (int64_t step = first; step < end; ++step) {
      const auto* digits = reinterpret_cast<const int32_t*>(loader.next_step());
      const int64_t rows = kBatch / ranks;
      for (int64_t row = 0; row < rows; ++row, digits += 3)
        all[static_cast<size_t>((step - first) * kBatch + rank * rows + row)] =
            100 * (digits[0] - '0') + 10 * (digits[1] - '0') + digits[2] - '0';
      loader.release_step();
    }
  }
  return all;
}

Samples joined(const std::vector<Samples>& all) {
  Samples joined;
  for (const Samples& samples : all) joined.insert(joined.end(), samples.begin(), samples.end());
  return joined;
}

void check_each_once(const Samples& epoch) {
  Samples sorted = epoch, expected(kEpochsSamples);
  std::sort(sorted.begin(), sorted.end());
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(sorted == expected);
}

}  // namespace

TEST_CASE("8 ranks read one shard together: each sample once an epoch, in the order of one rank") {
  const ScratchFolder folder;
  const DatasetSpec spec = one_shard(folder);
  const Samples alone = seen(spec, 1, 1, 0, 3 * kSteps);
  CHECK(seen(spec, 8, 3, 0, 3 * kSteps) == alone);
  for (int64_t epoch = 0; epoch < 3; ++epoch)
    check_each_once({alone.begin() + epoch * kEpochsSamples, alone.begin() + (epoch + 1) * kEpochsSamples});
  CHECK_FALSE(std::equal(alone.begin(), alone.begin() + kEpochsSamples, alone.begin() + kEpochsSamples));
}

TEST_CASE("a run resumed three times within an epoch, by other ranks, reads each sample of each epoch once") {
  const ScratchFolder folder;
  const DatasetSpec spec = one_shard(folder);
  const Samples resumed =
      joined({seen(spec, 1, 2, 0, 1), seen(spec, 8, 1, 1, 2), seen(spec, 4, 3, 2, 5), seen(spec, 2, 1, 5, 4 * kSteps)});
  check_each_once({resumed.begin(), resumed.begin() + kEpochsSamples});
  CHECK(resumed == seen(spec, 1, 1, 0, 4 * kSteps));
}
