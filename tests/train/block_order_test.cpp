// Tests orders of samples in which neighbours stay close to each other (engine/train/data/block_order.h).
#include "engine/train/data/block_order.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <vector>

#include "engine/train/data/dataset.h"
#include "engine/train/data/order.h"

using namespace trainctl;

namespace {

std::vector<int64_t> all_of(BlockOrder order, int64_t size) {
  std::vector<int64_t> numbers;
  for (int64_t place = 0; place < size; ++place) numbers.push_back(order.at(place));
  return numbers;
}

DatasetSpec in_blocks(int64_t block) {
  DatasetSpec spec;
  spec.type = "random";
  spec.shape = {1};
  spec.batch = 100;
  spec.shuffle_block = block;
  return spec;
}

std::vector<int64_t> batch_of(SampleOrder& order, int64_t epoch, int64_t step) {
  const auto batch = order.batch(epoch, step);
  return {batch.begin(), batch.end()};
}

}  // namespace

TEST_CASE("an order in blocks is a permutation for any size, block and pass") {
  for (const int64_t size : {1, 2, 15, 16, 17, 100, 257, 1000})
    for (const int64_t block : {1, 2, 3, 7, 16, 99, 5000})
      for (const uint64_t pass : {0, 1, 2}) {
        CAPTURE(size);
        CAPTURE(block);
        std::vector<int64_t> numbers = all_of({size, block, 3, pass}, size);
        std::sort(numbers.begin(), numbers.end());
        for (int64_t i = 0; i < size; ++i) REQUIRE(numbers[static_cast<size_t>(i)] == i);
      }
}

TEST_CASE("an order in blocks depends on the seed and the pass, and not on earlier queries") {
  const std::vector<int64_t> first = all_of({1000, 10, 3, 0}, 1000);
  CHECK(all_of({1000, 10, 3, 0}, 1000) == first);
  CHECK(all_of({1000, 10, 3, 1}, 1000) != first);
  CHECK(all_of({1000, 10, 4, 0}, 1000) != first);
  BlockOrder backwards(1000, 10, 3, 0);
  for (int64_t place = 999; place >= 0; --place) REQUIRE(backwards.at(place) == first[static_cast<size_t>(place)]);
}

TEST_CASE("a window has whole blocks: the places of a block's samples are less than 16 blocks apart") {
  for (const int64_t size : {100'000, 99'973}) {  // with a short block, and without
    const int64_t block = 50;
    const std::vector<int64_t> numbers = all_of({size, block, 9, 2}, size);
    std::vector<int64_t> first(static_cast<size_t>(size / block + 1), size), last(first.size(), -1);
    for (int64_t place = 0; place < size; ++place) {
      const auto of = static_cast<size_t>(numbers[static_cast<size_t>(place)] / block);
      first[of] = std::min(first[of], place);
      last[of] = std::max(last[of], place);
    }
    for (size_t of = 0; of < first.size(); ++of) REQUIRE(last[of] - first[of] < kWindowBlocks * block);
    for (int64_t from = 0; from + 200 <= size; from += 200) {  // 200 places touch at most two windows
      std::set<int64_t> blocks;
      for (int64_t place = from; place < from + 200; ++place)
        blocks.insert(numbers[static_cast<size_t>(place)] / block);
      REQUIRE(blocks.size() <= 2 * kWindowBlocks);
    }
  }
}

TEST_CASE("samples of a window are mixed: neighbours in the set are as far apart as chance puts them") {
  const int64_t size = 160'000, block = 1000, window = kWindowBlocks * block;
  const std::vector<int64_t> numbers = all_of({size, block, 5, 0}, size);
  std::vector<int64_t> place_of(numbers.size());
  for (int64_t place = 0; place < size; ++place)
    place_of[static_cast<size_t>(numbers[static_cast<size_t>(place)])] = place;
  double apart = 0;
  int64_t pairs = 0;
  for (int64_t i = 0; i + 1 < size; ++i)
    if (i / block == (i + 1) / block) {
      apart += static_cast<double>(std::abs(place_of[static_cast<size_t>(i)] - place_of[static_cast<size_t>(i + 1)]));
      ++pairs;
    }
  const double mean = apart / static_cast<double>(pairs) / static_cast<double>(window);  // of two random places: 1/3
  CHECK(mean > 0.32);
  CHECK(mean < 0.345);
}

TEST_CASE("over many passes a sample is equally likely in every part of the epoch") {
  const int64_t size = 32'000, block = 100;
  std::vector<int> quarters(4);
  for (uint64_t pass = 0; pass < 400; ++pass) {
    BlockOrder order(size, block, 11, pass);
    int64_t place = 0;  // of one of the samples 0 to 99, which all come in one window
    while (order.at(place) >= block) place += 1;
    ++quarters[static_cast<size_t>(place * 4 / size)];
  }
  for (const int count : quarters) {
    CHECK(count > 70);
    CHECK(count < 130);
  }
}

TEST_CASE("dataset.shuffle_block needs no list, and a resumed order begins in the middle of any epoch") {
  DatasetSpec spec = in_blocks(1000);
  spec.samples = 10'000'000'000;
  CHECK(read_data_header(spec, 1).bytes == 8 * 100);
  SampleOrder order(spec, spec.samples, 7), resumed(spec, spec.samples, 7);
  for (const int64_t step : {0, 1, 159, 160, 161}) batch_of(order, 0, step);
  const std::vector<int64_t> far = batch_of(order, 3, 10'000'000);  // sample 10^9
  CHECK(batch_of(resumed, 3, 10'000'000) == far);
  CHECK(batch_of(resumed, 4, 10'000'000) != far);
  std::set<int64_t> blocks;
  for (const int64_t sample : far) blocks.insert(sample / 1000);
  CHECK(blocks.size() > 8);
  CHECK(blocks.size() <= 2 * kWindowBlocks);

  spec.samples = 20'000;  // of which a whole shuffle makes a list
  const int64_t bytes = read_data_header(spec, 1).bytes;
  spec.shuffle_block = 0;
  CHECK(read_data_header(spec, 1).bytes == bytes + 8 * 20'000);
}
